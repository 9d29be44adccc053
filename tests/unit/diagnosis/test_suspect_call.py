"""One sentence on what the runs of the suspect call prove together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.diagnosis.suspect_call import conclusion
from megatron_nanguard.records.trace import TensorFacts
from tests.unit.diagnosis.factories import FINITE, arbitration, origin

ALWAYS = {"repeats": 8, "repeats_bad": 8}
WRONG = {**ALWAYS, "reference_fp64": "finite"}


@pytest.mark.parametrize(
    ("outcomes", "begins"),
    [
        ({}, "It could not be run again"),
        ({**ALWAYS, "inputs_bad": True}, "It was given NaN or Inf"),
        ({"repeats": 8, "repeats_bad": 2}, "2 of 8 runs on equal inputs are bad"),
        ({"repeats": 8, "repeats_bad": 4, "zero_filled": 4}, "Bad, but never where fresh memory is filled with zeros"),
        (
            {**ALWAYS, "peer": "bad", "peer_rank": 1, "peer_is_alike": False},
            "Bad every time, also on another device: the operator is at fault",
        ),
        ({"repeats": 8}, "Never bad again on the same inputs"),
        (
            {**ALWAYS, "peer": "finite", "peer_rank": 1, "peer_is_alike": False},
            "Bad here every time and finite on another",
        ),
        (
            {**ALWAYS, "peer": "finite", "peer_rank": 1, "peer_is_alike": True},
            "Bad here every time and finite on rank 1",
        ),
        ({**ALWAYS, "out_of_range": True}, "The exact result is finite and does not fit"),
        ({**ALWAYS, "reference_fp64": "bad"}, "Not finite in higher precision either"),
        (ALWAYS, "Bad every time on its own device, and nothing to compare with"),
        (WRONG, "Bad every time, and finite in higher precision"),
        ({**WRONG, "peer": "bad", "peer_rank": 7, "peer_is_alike": False}, "Bad every time, also on another device"),
        (
            {**WRONG, "peer": "bad", "peer_rank": 7, "peer_is_alike": True},
            "Bad every time, also on rank 7, the same model on the same host, which is weak evidence",
        ),
    ],
)
def test_the_sentence_follows_the_outcomes(outcomes: dict[str, Any], begins: str) -> None:
    assert conclusion(arbitration(**outcomes)).startswith(begins)


def test_a_call_that_stores_a_number_that_is_nan_is_not_at_fault() -> None:
    call = arbitration(operator="aten.index_put_.default", **ALWAYS, inputs_bad=True)
    number = TensorFacts("values", (), "number", "nan")
    stored = origin(operator="index_put_", inputs=(FINITE, number))

    assert conclusion(call, (stored,)).startswith("The call only stores the NaN that its caller passed")
    assert conclusion(call, (origin(operator="index_put_"),)).startswith("It was given NaN or Inf")
    assert conclusion(call, (replace(stored, rank=4),)).startswith("It was given NaN or Inf")
