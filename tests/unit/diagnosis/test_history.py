"""Earlier incidents, of this attempt and of others: what keeps to a device, to the data, or to nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.history import bears_on
from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.diagnosis.verdict import verdict
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.machine.device import RankDevice
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass
from tests.unit.diagnosis.factories import arbitration, case, earlier, origin
from tests.unit.factories import incident

data = RULES[Cause.DATA]
hardware_persistent = RULES[Cause.HARDWARE_PERSISTENT]
hardware_transient = RULES[Cause.HARDWARE_TRANSIENT]
uninitialised_or_race = RULES[Cause.UNINITIALISED_OR_RACE]

CARD_3, CARD_4 = RankDevice(5, "node7", "cuda:3"), RankDevice(5, "node7", "cuda:4")
FAR = RankDevice(5, "node9", "cuda:3")
ATTEMPT = "20260101T120000Z-ab12"


def now(*before: Incident, **changes: Any) -> Case:
    """Step 130, rank 5 on card 3 of node7, gone in the replay."""
    known: dict[str, Any] = {
        "step": 130,
        "origin": (origin(),),
        "ranks": RankSets((5,), (), ()),
        "accused_devices": (CARD_3,),
        "num_hosts": 16,
        "passes": (ReplayPass("plain", "no"),),
    }
    return case(**{**known, **changes}, earlier=before)


def then(device: RankDevice = CARD_3, step: int = 120, rank: int = 9, attempt: str = ATTEMPT) -> Incident:
    """What an earlier attempt met, in which another rank was on the device."""
    devices = (replace(device, rank=rank),)
    return earlier(step, origin=(origin(rank=rank),), run_id=attempt, accused_devices=devices)


def against(found: RankedCause | None) -> tuple[str, ...]:
    return () if found is None else found.against


def test_faults_that_recur_on_a_device_make_it_suspect_and_no_more() -> None:
    found = hardware_persistent.reading(now(then(), then(step=125, attempt="20260102T120000Z-cd34")))

    assert found == RankedCause(
        cause="hardware_persistent",
        confidence=0.38,
        for_=(
            "the same device, node7, cuda:3, was suspect in step 120 of attempt 20260101T120000Z-ab12 and step 125 of "
            "attempt 20260102T120000Z-cd34 already",
        ),
        against=(),
        not_tested=("the error counters of the device", "the suspect call on a second device"),
        next="",
    )


@pytest.mark.parametrize("number", range(1, 9))
def test_however_many_they_are_the_device_is_not_the_first_of_causes(number: int) -> None:
    several = [then(step=step) for step in range(100, 100 + number)]

    assert verdict(now(*several))[0].cause != "hardware_persistent"


def test_a_second_device_decides_and_the_past_is_named_beside_it() -> None:
    convicted = arbitration(repeats=8, repeats_bad=8, peer="finite", peer_rank=1, peer_device="cuda:0")

    found = hardware_persistent.reading(now(then(), arbitrations=(convicted,)))

    assert found is not None and found.confidence > 0.8
    assert found.for_ == (
        "aten.log.default on rank 5 is bad 8 times of 8 here, and finite on the device of rank 1 (cuda:0)",
        f"the same device, node7, cuda:3, was suspect in step 120 of attempt {ATTEMPT} already",
    )


def test_a_second_device_that_fails_too_acquits_the_suspect() -> None:
    found = hardware_persistent.reading(now(then(), arbitrations=(arbitration(repeats=8, repeats_bad=8, peer="bad"),)))

    assert found is not None and found.confidence < 0.05


def test_the_host_is_suspect_where_its_devices_differ_and_it_is_one_of_several() -> None:
    words = f"the same host, node7, was suspect in step 120 of attempt {ATTEMPT} already"

    found = hardware_persistent.reading(now(then(CARD_4)))

    assert found is not None and found.for_ == (words,)
    assert hardware_persistent.reading(now(then(CARD_4), num_hosts=1)) is None


@pytest.mark.parametrize("num_hosts", [1, 16])
def test_a_host_with_one_device_names_it_unless_there_is_no_other_host(num_hosts: int) -> None:
    alone = RankDevice(5, "node7", "")

    found = hardware_persistent.reading(now(then(alone), accused_devices=(alone,), num_hosts=num_hosts))

    assert (found is not None) == (num_hosts > 1)


def test_the_same_rank_on_another_device_speaks_against_both() -> None:
    seen = now(then(FAR, rank=5))

    assert hardware_persistent.reading(seen) is None
    assert against(hardware_transient.reading(seen)) == (
        f"step 120 of attempt {ATTEMPT} was bad on rank 5, on other devices",
    )


def test_the_same_step_on_another_device_is_the_data_and_not_the_device() -> None:
    again = f"attempt {ATTEMPT} was bad in the same step, on other devices"
    seen = now(then(FAR, step=130))

    found = data.reading(seen)
    assert found is not None and found.for_ == (again,)
    assert f"step 130 of attempt {ATTEMPT} was bad too, on other devices (rank 9 there)" in against(
        hardware_transient.reading(seen)
    )
    assert again in against(uninitialised_or_race.reading(seen))


def test_the_same_step_on_the_same_device_speaks_for_neither() -> None:
    seen = now(then(step=130))

    assert hardware_persistent.reading(seen) is None
    assert data.reading(seen) is None


def test_a_set_of_ranks_larger_than_a_host_points_to_no_device() -> None:
    everybody = tuple(RankDevice(rank, "node7", f"cuda:{rank}") for rank in range(9))
    seen = now(then(), origin=(), ranks=RankSets(tuple(range(9)), (), ()), accused_devices=everybody)

    assert hardware_persistent.reading(seen) is None


def test_what_wanders_is_a_race_and_what_stays_is_none() -> None:
    wandering = uninitialised_or_race.reading(now(then(), then(FAR)))
    staying = uninitialised_or_race.reading(now(then(), then(step=125, rank=2)))

    words = "2 earlier incidents without a clear cause, in different places"
    assert wandering is not None and words in wandering.for_
    assert staying is not None and words not in staying.for_


def test_what_keeps_to_a_rank_speaks_for_a_lasting_fault_and_against_a_passing_one() -> None:
    seen = now(*(earlier(step, 5) for step in (120, 121, 122)))

    words = ("rank 5 was the only bad rank in step 120, step 121 and step 122 already",)
    lasting, passing = hardware_persistent.reading(seen), hardware_transient.reading(seen)
    assert lasting is not None and lasting.for_ == words
    assert passing is not None and passing.against == words
    assert not set(words) & set(passing.for_)


def test_a_rank_among_several_bad_ones_is_not_the_only_one() -> None:
    found = hardware_persistent.reading(now(earlier(120, 4, 5)))

    assert found is not None and found.for_ == ("rank 5 was among the bad ranks in step 120 already",)


def test_an_earlier_incident_bears_on_this_one_unless_its_values_explain_it() -> None:
    this = incident(step=9)

    def bears(code: str, **changes: Any) -> bool:
        return bears_on(earlier(3, 4, causes=(RankedCause(code, 0.9, ("fact",), (), (), ""),), **changes), this)

    assert bears("undecided") and bears("operator") and bears_on(earlier(3, 4), this)
    assert not bears("loss_or_mask")


def test_the_same_step_of_another_attempt_always_bears_on_this_one() -> None:
    explained = (RankedCause("numerics", 0.9, ("fact",), (), (), ""),)

    assert bears_on(earlier(3, 4, run_id="first", causes=explained), incident(step=3))
    assert not bears_on(earlier(2, 4, run_id="first", causes=explained), incident(step=3))


def test_the_devices_of_an_earlier_incident_are_those_of_its_origins() -> None:
    others = RankDevice(4, "node7", "cuda:3")
    seen = now(earlier(120, origin=(origin(rank=7),), run_id=ATTEMPT, accused_devices=(others, replace(FAR, rank=7))))

    assert hardware_persistent.reading(seen) is None
    assert against(hardware_transient.reading(seen)) == (
        f"step 120 of attempt {ATTEMPT} was bad on rank 7, on other devices",
    )
