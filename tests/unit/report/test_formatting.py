"""How numbers, counts and causes are written."""

from __future__ import annotations

import math

import pytest

from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.report.formatting import call_words, count, judged, more_note, number
from tests.unit.diagnosis.factories import origin


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.nan, "NaN"), (-math.inf, "-Inf"), (0.0, "0"), (1234567.0, "1.23457e+06"), (10.25, "10.25")],
)
def test_numbers_have_six_digits_and_nan_and_inf_are_named(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_call_is_written_with_its_module_where_it_is_known() -> None:
    assert call_words(origin()) == "log in decoder.layers.3.mlp"
    assert call_words(origin(module="")) == "log"


def test_a_count_of_zero_is_not_shown_as_unknown() -> None:
    assert (count(0), count(None)) == ("0", "-")


@pytest.mark.parametrize(
    ("code", "confidence", "words"),
    [
        ("operator", 0.62, "faulty operator (likely, 0.62)"),
        ("numerics", 0.8, "numerics (very likely, 0.80)"),
        ("loss_or_mask", 0.2, "loss or mask (possible, 0.20)"),
        ("checker_artifact", 0.19, "false alarm (unlikely, 0.19)"),
        ("undecided", 0.7, "undecided"),
    ],
)
def test_the_confidence_of_a_cause_is_given_in_words(code: str, confidence: float, words: str) -> None:
    assert judged(RankedCause(code, confidence, (), (), (), "")) == words


def test_what_is_left_out_is_counted_in_a_note() -> None:
    assert more_note(2, "more origin") == ("... and 2 more origins",)
    assert more_note(0, "more origin") == more_note(-1, "more origin") == ()
