"""Passes against each other, and positions that follow memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import BatchSpot
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import NAN, arbitration, case, changed, earlier, origin

judge = RULES[Cause.UNINITIALISED_OR_RACE].reading


def passes(**came_back: str) -> tuple[ReplayPass, ...]:
    return tuple(ReplayPass(label, outcome) for label, outcome in came_back.items())  # type: ignore[arg-type]


def confidence(cause: RankedCause | None) -> float:
    assert cause is not None
    return cause.confidence


def test_a_half_written_buffer_is_found_by_the_marker() -> None:
    unwritten = origin(kind=OriginKind.NEVER_WRITTEN, operator="add")

    assert judge(case(origin=(unwritten,), passes=passes(plain="no", synchronous="no", marker="yes"))) == RankedCause(
        cause="uninitialised_or_race",
        confidence=0.98,
        for_=(
            "memory was read that nobody had written: add in decoder.layers.3.mlp",
            "gone in the plain replay, back when all new memory is filled with NaN before it is used",
            "gone in the plain replay",
        ),
        against=(),
        not_tested=(),
        next="",
    )


@pytest.mark.parametrize(
    ("came_back", "expected"),
    [
        ({"plain": "yes", "synchronous": "no"}, 0.92),
        ({"plain": "yes", "traced": "no"}, 0.62),
        ({"plain": "yes", "traced": "yes", "probed": "no"}, 0.62),
        ({"plain": "partly"}, 0.38),
        ({"plain": "no"}, 0.38),
        ({"plain": "no", "marker": "no"}, 0.18),
    ],
)
def test_a_fault_that_vanishes_when_observed_is_a_race(came_back: dict[str, str], expected: float) -> None:
    assert confidence(judge(case(passes=passes(**came_back)))) == expected


def test_a_fault_that_comes_back_bit_for_bit_is_no_race() -> None:
    steady = case(
        origin=(origin(kind=OriginKind.UNSEEN, facts=replace(NAN, layout="tail of 3 from element 29")),),
        passes=passes(plain="yes", traced="yes"),
    )

    assert confidence(judge(changed(steady, exact=True))) < confidence(judge(steady))


def test_a_fault_that_is_gone_the_second_time_it_is_traced_wavers() -> None:
    wavering = case(passes=passes(plain="yes", traced="yes", probed="no"), exact=True)

    found = judge(wavering)
    assert found is not None
    assert found.for_ == ("there in one traced replay, gone in the next, which differs in nothing",)
    assert found.against == ()
    assert judge(changed(wavering, passes=passes(plain="yes", traced="yes", probed="yes"))) is None


@pytest.mark.parametrize("layout", ["aligned block of 2048 from element 4096", "rows 6 to 7, to the end"])
def test_positions_that_follow_memory(layout: str) -> None:
    unseen = origin(kind=OriginKind.UNSEEN, facts=replace(NAN, layout=layout))

    found = judge(case(origin=(unseen,)))

    assert found is not None and found.confidence == 0.82
    assert found.for_[0].startswith(f"bad positions follow memory, not values: {layout} of")


def test_rows_alone_follow_values() -> None:
    assert judge(case(origin=(origin(facts=replace(NAN, layout="rows 5 to 7")),))) is None


def test_a_gradient_buffer_that_was_bad_from_the_start() -> None:
    stale = origin(kind=OriginKind.OUTSIDE, operator="gradient of decoder.layers.3.w")

    assert confidence(judge(case(origin=(stale,)))) == 0.92


def test_an_expert_gradient_without_a_known_writer() -> None:
    expert = origin(kind=OriginKind.UNSEEN, module="decoder.layers.3.mlp.experts")

    assert confidence(judge(case(origin=(expert,)))) == 0.38


def test_a_batch_that_another_thread_wrote_into() -> None:
    found = judge(case(changed_after_fetch=(BatchSpot(5, 2), BatchSpot(4, 2))))

    assert found is not None and found.for_ == ("the batch of ranks 4, 5 changed after it had been fetched",)


def test_earlier_incidents_on_other_ranks_are_a_hint() -> None:
    wandering = (earlier(3, 0), earlier(9, 4))
    steady = (earlier(3, 0), earlier(9, 0))

    assert confidence(judge(case(earlier=wandering))) == 0.38
    assert judge(case(earlier=steady)) is None


def test_a_kernel_that_is_wrong_each_time_is_no_race() -> None:
    assert judge(case(origin=(origin(),), passes=passes(plain="yes", traced="yes"), exact=True)) is None


def test_what_a_buffer_held_before_comes_back_each_time() -> None:
    stale = origin(kind=OriginKind.OUTSIDE, operator="gradient of decoder.layers.3.w")
    found = judge(case(origin=(stale,), passes=passes(plain="yes", traced="yes"), exact=True))

    assert found is not None and (found.confidence, found.against) == (0.92, ())


def test_where_only_losses_could_be_compared_their_equality_weighs_less() -> None:
    gone = (ReplayPass("plain", "no"),)
    known = case(passes=gone, exact=False, finite_exact=True)

    all_compared, losses = judge(known), judge(changed(known, only_losses=(1,)))

    assert all_compared is not None and losses is not None
    assert losses.confidence > all_compared.confidence
    assert losses.against == (
        "all that is finite in the step and in its replay is equal bit for bit, but of rank 1 only losses could be "
        "compared",
    )


def test_a_call_that_is_finite_in_zeroed_memory_reads_what_nobody_wrote() -> None:
    follows = arbitration(operator="_Linear.forward", repeats=8, repeats_bad=4, zero_filled=4)
    found = judge(case(arbitrations=(follows,)))

    assert found is not None
    assert found.for_ == (
        "_Linear.forward on rank 5 is bad 4 times of 4, and never where fresh memory is filled with zeros first",
    )
    assert found.confidence == 0.92


def test_a_call_that_is_bad_whatever_memory_holds_speaks_against_it() -> None:
    region = origin(kind=OriginKind.UNSEEN, operator="_Linear.forward", facts=replace(NAN, layout="tail of 4 rows"))
    always = arbitration(operator="_Linear.forward", repeats=8, repeats_bad=8, zero_filled=4, zero_filled_bad=4)
    alone, again = judge(case(origin=(region,))), judge(case(origin=(region,), arbitrations=(always,)))

    assert again is not None
    assert again.against == ("_Linear.forward on rank 5 is bad 8 times of 8, whatever fresh memory holds",)
    assert again.confidence < 0.5 < confidence(alone)


def test_the_region_of_an_expert_is_no_gradient_that_nobody_wrote() -> None:
    region = origin(kind=OriginKind.UNSEEN, operator="_GroupedLinearBackward", module="decoder.layers.1.mlp.experts")
    unseen = replace(region, operator="unseen writer")

    assert judge(case(origin=(region,))) is None
    assert judge(case(origin=(unseen,))) is not None


def test_a_region_that_is_bad_in_zeroed_memory_too_has_not_failed_for_what_it_left_unwritten() -> None:
    region = origin(kind=OriginKind.NEVER_WRITTEN, operator="_Linear.forward")
    always = arbitration(operator="_Linear.forward", repeats=8, repeats_bad=8, zero_filled=4, zero_filled_bad=4)

    assert judge(case(origin=(region,), arbitrations=(always,))) is None
    alone = judge(case(origin=(region,)))
    assert alone is not None
    assert alone.for_ == ("memory was read that nobody had written: _Linear.forward in decoder.layers.3.mlp",)
