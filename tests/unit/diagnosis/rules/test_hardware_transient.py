"""A fault that went away convicts the device only when the suspect call itself says so."""

from __future__ import annotations

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.diagnosis.rules.hardware_transient import WITHOUT_THE_CALL
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import BatchSpot
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import arbitration, case, earlier, origin

judge = RULES[Cause.HARDWARE_TRANSIENT].reading

GONE = (ReplayPass("plain", "no"),)
ALONE = RankSets((5,), (0, 1), ())
CALL = "aten.log.default on rank 5"


def test_the_suspect_call_is_finite_on_the_inputs_it_failed_on() -> None:
    assert judge(case(passes=GONE, ranks=ALONE, arbitrations=(arbitration(repeats=8),))) == RankedCause(
        cause="hardware_transient",
        confidence=0.9,
        for_=(
            "the same step on the same data was finite in the replay",
            "only rank 5 was bad before the reduction",
            f"{CALL} is finite 8 times of 8 on the inputs it failed on",
        ),
        against=(),
        not_tested=("the error counters of the device",),
        next="",
    )


def test_a_fault_that_is_gone_the_second_time_it_is_traced_may_be_a_transient() -> None:
    labels = ("plain", "traced", "probed")
    wavering = tuple(ReplayPass(label, came) for label, came in zip(labels, ("yes", "yes", "no"), strict=True))  # type: ignore[arg-type]

    found = judge(case(passes=wavering, ranks=ALONE))

    assert found is not None and found.confidence <= WITHOUT_THE_CALL
    assert found.for_ == ("there in one traced replay, gone in the next, which differs in nothing",)
    assert found.against == ()
    assert judge(case(passes=wavering[:2], ranks=ALONE)) is None


def test_a_fault_that_comes_back_with_the_step_and_not_with_the_call_is_no_single_event() -> None:
    steady = tuple(ReplayPass(label, "yes") for label in ("plain", "traced"))  # type: ignore[arg-type]
    clean_alone = (arbitration(repeats=8, repeats_bad=0),)

    found, once = judge(case(passes=steady, arbitrations=clean_alone)), judge(case(arbitrations=clean_alone))

    assert found is not None and once is not None and found.confidence < once.confidence
    assert found.against == ("the fault came back each time the step was run again: it was no single event",)
    assert once.against == ()


def test_a_clean_replay_alone_has_a_ceiling() -> None:
    found = judge(case(passes=GONE, ranks=ALONE))

    assert found is not None
    assert found.confidence <= WITHOUT_THE_CALL
    assert found.not_tested[0] == "the suspect call again on the same device"


def test_a_call_that_fails_sometimes() -> None:
    found = judge(case(arbitrations=(arbitration(repeats=8, repeats_bad=2),)))

    assert found is not None and found.for_ == (f"{CALL} is bad 2 times of 8 on equal inputs",)


def test_memory_explains_it_better() -> None:
    unwritten = origin(kind=OriginKind.NEVER_WRITTEN)
    found = judge(case(passes=GONE, origin=(unwritten,), changed_after_fetch=(BatchSpot(0, 0),)))

    assert found is not None
    assert found.confidence < 0.01
    assert found.against == (
        "memory that nobody had written explains it",
        "the batch changed after it had been fetched",
    )


def test_earlier_incidents_on_other_ranks_speak_against_one_device() -> None:
    found = judge(case(passes=GONE, ranks=ALONE, earlier=(earlier(2, 3, 7),)))

    assert found is not None and found.against == ("step 2 was bad on ranks 3, 7, on other devices",)


def test_a_call_that_fails_each_time_is_not_transient() -> None:
    assert judge(case(arbitrations=(arbitration(repeats=8, repeats_bad=8),))) is None


def test_a_call_that_follows_its_memory_is_not_transient() -> None:
    follows = arbitration(repeats=8, repeats_bad=4, zero_filled=4)

    assert judge(case(arbitrations=(follows,))) is None
