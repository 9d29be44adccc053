"""What readings of the hardware prove: on the device where it began everything, elsewhere little, silence nothing."""

from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.health import relevant_health
from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.diagnosis.verdict import verdict
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.machine.health import HealthDifference
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import arbitration, case, origin
from tests.unit.factories import incident
from tests.unit.hardware import CORRECTED, HOST_LOST_DATA, LINK, LOST_DATA, NOTE, SLOW, health

communication = RULES[Cause.COMMUNICATION]
hardware_persistent = RULES[Cause.HARDWARE_PERSISTENT]
hardware_transient = RULES[Cause.HARDWARE_TRANSIENT]

BACK, GONE = (ReplayPass("plain", "yes"),), (ReplayPass("plain", "no"),)
SETS = RankSets((5,), (0, 1), (2, 3))
ITSELF = (
    "the device of rank 5 itself reports an uncorrectable error since the start of the run: "
    "ECC errors, uncorrected, volatile from 0 to 2"
)
NUMERICS = arbitration(repeats=8, repeats_bad=8, peer="bad", reference_fp64="bad")


def on_rank_5(*differences: HealthDifference, **changes: object) -> Case:
    """An origin on rank 5, whose device tells of this, beside a healthy one."""
    told = (health(5, *differences), health(2))
    return case(**{"origin": (origin(),), "ranks": SETS, "health": told, **changes})


def test_a_device_that_lost_data_outweighs_a_proof_of_numerics() -> None:
    silent = verdict(on_rank_5(passes=BACK, arbitrations=(NUMERICS,)))
    assert silent[0].cause == "numerics"
    assert "hardware_persistent" not in [cause.cause for cause in silent]

    first = verdict(on_rank_5(LOST_DATA, passes=BACK, arbitrations=(NUMERICS,)))[0]
    assert (first.cause, first.confidence) == ("hardware_persistent", 0.99)
    assert first.for_ == (ITSELF,)
    assert first.not_tested == ("the suspect call on a second device",)


def test_a_fault_that_went_away_is_a_transient_of_that_device() -> None:
    assert hardware_persistent.reading(on_rank_5(LOST_DATA, passes=GONE)) is None
    found = hardware_transient.reading(on_rank_5(LOST_DATA, passes=GONE))
    assert found == RankedCause(
        cause="hardware_transient",
        confidence=0.99,
        for_=(
            ITSELF,
            "the same step on the same data was finite in the replay",
            "only rank 5 was bad before the reduction",
        ),
        against=(),
        not_tested=("the suspect call again on the same device",),
        next="",
    )


def test_without_a_replay_the_device_is_named_all_the_same() -> None:
    first = verdict(on_rank_5(LOST_DATA))[0]
    assert (first.cause, first.confidence) == ("hardware_transient", 0.99)


def test_weights_that_were_bad_before_do_not_hide_the_device_that_spoiled_them() -> None:
    spoiled = origin(kind=OriginKind.OUTSIDE, operator="parameter a.weight")
    first = verdict(on_rank_5(LOST_DATA, passes=BACK, origin=(spoiled,)))[0]
    assert first.cause == "hardware_persistent"


def test_an_error_on_another_device_says_little() -> None:
    elsewhere = (health(5), health(2, LOST_DATA))
    causes = verdict(on_rank_5(passes=BACK, arbitrations=(NUMERICS,), health=elsewhere))
    assert causes[0].cause == "numerics"
    found = hardware_transient.reading(on_rank_5(health=elsewhere))
    assert found is not None
    assert found.confidence < 0.25
    assert found.for_ == (
        "the device of rank 2, where it did not begin, reports an uncorrectable error: "
        "ECC errors, uncorrected, volatile from 0 to 2",
    )


def test_an_origin_on_a_silent_device_speaks_against_the_one_that_reports() -> None:
    both = (origin(), origin(rank=7))
    found = hardware_persistent.reading(on_rank_5(LOST_DATA, passes=BACK, origin=both))
    assert found is not None
    assert found.confidence < 0.2
    assert found.against[0] == "it began on rank 7 too, where no device reports such an error"


def test_one_member_of_a_communication_explains_it() -> None:
    sent = origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", rank=1, ranks=(1, 5))
    found = hardware_transient.reading(on_rank_5(LOST_DATA, origin=(sent,)))
    assert found is not None
    assert (found.confidence, found.against) == (0.99, ())


def test_without_an_origin_a_report_of_the_device_is_strong_but_not_decisive() -> None:
    sets = RankSets((4, 5), (0, 1), (2, 3))
    found = hardware_transient.reading(on_rank_5(LOST_DATA, origin=(), ranks=sets))
    assert found is not None
    assert found.confidence == 0.88
    assert "whether it began on rank 5" in found.not_tested


@pytest.mark.parametrize("told", [CORRECTED, SLOW, NOTE, LINK])
def test_corrected_errors_and_slow_clocks_alone_make_no_cause(told: HealthDifference) -> None:
    assert hardware_transient.reading(on_rank_5(told)) is None
    assert hardware_persistent.reading(on_rank_5(told, passes=BACK, arbitrations=(NUMERICS,))) is None


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (CORRECTED, "the device of rank 5 reports errors that were corrected: ECC errors, corrected, volatile"),
        (SLOW, "the device of rank 5 reports lowered clocks: clocks limited by from nothing to power brake"),
        (HOST_LOST_DATA, "the host of rank 5 lost data in its own memory: memory errors, uncorrectable from 0 to 1"),
    ],
)
def test_beside_other_facts_they_are_hints(told: HealthDifference, words: str) -> None:
    with_hint = hardware_transient.reading(on_rank_5(told, passes=GONE, arbitrations=(arbitration(repeats=8),)))
    without = hardware_transient.reading(on_rank_5(passes=GONE, arbitrations=(arbitration(repeats=8),)))
    assert with_hint is not None and without is not None
    assert [fact for fact in with_hint.for_ if fact.startswith(words)]
    assert with_hint.confidence >= without.confidence


def test_a_device_that_was_asked_leaves_no_question_open() -> None:
    silent = hardware_transient.reading(on_rank_5(passes=GONE))
    unknown = hardware_transient.reading(on_rank_5(passes=GONE, health=()))
    assert silent is not None and unknown is not None
    assert "the error counters of the device" not in silent.not_tested
    assert "the error counters of the device" in unknown.not_tested


def test_errors_on_links_are_a_hint_at_the_transport() -> None:
    sent = origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", rank=1, ranks=(1, 5))
    found = communication.reading(on_rank_5(LINK, origin=(sent,)))
    assert found is not None
    words = "the device of rank 5 counted errors on its links: NVLink CRC errors, flits from 0 to 7"
    assert found.for_[1:] == (words,)
    assert communication.reading(on_rank_5(LINK)) is None


def test_the_incident_keeps_the_origin_what_is_new_and_one_clean_peer() -> None:
    told = (health(0), health(1, NOTE), health(2), health(3, CORRECTED), health(5), health(6))
    merged = incident(ranks=RankSets((5, 6), (0, 1), (2, 3)), origin=(origin(),), health=told)
    assert [one.rank for one in relevant_health(merged)] == [5, 3, 2]


def test_of_ranks_with_something_new_those_that_lost_data_come_first() -> None:
    told = (health(0, SLOW), health(1, LINK), health(3, LOST_DATA), health(5))
    assert [one.rank for one in relevant_health(incident(origin=(origin(),), health=told))] == [5, 3, 0, 1]


def test_without_an_origin_the_first_bad_ranks_are_kept() -> None:
    told = tuple(health(rank) for rank in range(16))
    merged = incident(ranks=RankSets(tuple(range(12)), (12, 13), (14, 15)), health=told)
    assert [one.rank for one in relevant_health(merged)] == [0, 1, 2, 3, 4, 5, 6, 7, 14]
    assert relevant_health(incident()) == ()
