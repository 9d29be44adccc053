"""A device is convicted against a second one, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from tests.unit.diagnosis.factories import arbitration, case, earlier, origin

judge = RULES[Cause.HARDWARE_PERSISTENT].reading

CONVICTED = arbitration(repeats=8, repeats_bad=8, peer="finite", peer_rank=1, reference_fp64="finite")


def test_bad_here_and_finite_there() -> None:
    facts = case(arbitrations=(CONVICTED,), earlier=(earlier(2, origin=(origin(),)),))

    assert judge(facts) == RankedCause(
        cause="hardware_persistent",
        confidence=0.97,
        for_=(
            "aten.log.default on rank 5 is bad 8 times of 8 here, and finite on the device of rank 1",
            "its reference in higher precision is finite",
            "the same rank was the origin in step 2 already",
        ),
        against=(),
        not_tested=("the error counters of the device",),
        next="",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"peer": "not_tried"},
        {"peer": "bad"},
        {"peer": "not seen within the deadline"},
        {"repeats_bad": 7},
        {"repeats": 0, "repeats_bad": 0},
        {"inputs_bad": True},
    ],
)
def test_without_a_second_device_that_passes_nothing_is_said(changes: dict[str, object]) -> None:
    assert judge(case(arbitrations=(replace(CONVICTED, **changes),))) is None  # type: ignore[arg-type]


def test_the_same_failure_on_other_devices_speaks_against_this_one() -> None:
    found = judge(case(arbitrations=(CONVICTED,), origin=(origin(), origin(rank=7))))

    assert found is not None
    assert found.against == ("the same operator fails on ranks 5, 7, on devices of their own",)
