"""Advice for the patterns that were recognised."""

from __future__ import annotations

from megatron_nanguard.diagnosis.advice import texts
from megatron_nanguard.report.blocks import Block, Point
from megatron_nanguard.report.sections import advice
from tests.unit.report.factories import opened_incident


def test_without_a_pattern_there_is_no_advice() -> None:
    assert advice.describe(opened_incident()) is None


def test_a_pattern_says_what_to_check_and_what_to_change() -> None:
    text = texts()["bad_moments"]

    assert advice.describe(opened_incident(advice=("bad_moments",))) == Block(
        "What helps", points=(Point(text.what, below=(Point(f"check: {text.check}"), Point(f"change: {text.change}"))),)
    )


def test_advice_of_a_later_version_is_named_only() -> None:
    assert advice.describe(opened_incident(advice=("cosmic_ray",))) == Block(
        "What helps", points=(Point("cosmic ray"),)
    )
