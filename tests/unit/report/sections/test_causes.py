"""Ranked causes with their evidence, and advice for recognised patterns."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.texts import advice_texts, meaning
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.step.replay import ReplaySummary, Trial
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.sections import causes
from tests.unit.report.factories import described, opened_incident

OUTCOMES: tuple[Trial, ...] = ("not_tried", "bad", "finite")
MANY = tuple(
    RankedCause(name, 0.5, ("a",), ("b",), ("c",), "d") for name in ("data", "numerics", "operator", "framework")
)


def test_without_causes_there_is_no_section() -> None:
    assert causes.describe(opened_incident()) is None


def test_a_cause_is_shown_with_the_evidence_for_and_against_it() -> None:
    assert causes.describe(opened_incident(causes=MANY[:1])) == Block(
        "Causes, most likely first",
        points=(
            Point(
                "data (likely, 0.50)",
                "1.",
                below=(
                    Point(meaning("data"), tone=Tone.QUIET),
                    Point("a", "+", Tone.GOOD),
                    Point("b", "-", Tone.BAD),
                    Point("not tested: c", "?", Tone.UNKNOWN),
                ),
            ),
        ),
    )


def test_the_first_three_causes_are_shown_in_full() -> None:
    block = described(causes.describe, opened_incident(causes=(*MANY, replace(MANY[0], cause="hardware_transient"))))

    assert [point.text for point in block.points] == [
        "data (likely, 0.50)",
        "numerics (likely, 0.50)",
        "faulty operator (likely, 0.50)",
    ]
    assert block.notes == (
        "less likely: framework (likely, 0.50); passing hardware fault (likely, 0.50)",
        "The numbers are scores of single causes; they need not add up to 1.",
    )


def test_the_undecided_entry_is_not_listed_among_the_causes() -> None:
    undecided = RankedCause("undecided", 0.7, ("a and b",), (), ("the step again",), "")

    block = described(causes.describe, opened_incident(causes=(undecided, *MANY[:2])))

    assert (block.title, block.text) == ("Causes, none clearly ahead", (meaning("undecided"),))
    assert [(point.mark, point.text) for point in block.points] == [
        ("1.", "data (likely, 0.50)"),
        ("2.", "numerics (likely, 0.50)"),
        ("?", "not tested: the step again"),
    ]


def test_a_pass_at_a_lower_loss_scale_is_shown_with_its_outcome() -> None:
    told = {
        outcome: described(
            causes.describe, opened_incident(causes=MANY[:1], replay=ReplaySummary(done=True, lower_scale=outcome))
        ).notes
        for outcome in OUTCOMES
    }

    assert told == {
        "not_tried": (),
        "bad": ("Run again at 1/256 of its loss scale, the step was bad too: the scale did not overflow.",),
        "finite": ("Run again at 1/256 of its loss scale, the step was finite: the scale overflowed.",),
    }


def test_without_a_pattern_there_is_no_advice() -> None:
    assert causes.describe_advice(opened_incident()) is None


def test_a_pattern_says_what_to_check_and_what_to_change() -> None:
    text = advice_texts()["bad_moments"]

    assert causes.describe_advice(opened_incident(advice=("bad_moments",))) == Block(
        "What helps", points=(Point(text.what, below=(Point(f"check: {text.check}"), Point(f"change: {text.change}"))),)
    )


def test_advice_of_a_later_version_is_named_only() -> None:
    assert causes.describe_advice(opened_incident(advice=("cosmic_ray",))) == Block(
        "What helps", points=(Point("cosmic ray"),)
    )
