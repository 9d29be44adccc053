"""When a skip of the loss scaler is more than the scaler at work."""

from __future__ import annotations

import pytest

from megatron_nanguard.policy.scaler import Judgement, ScalerTally

CLEAR, SKIP, INCIDENT = Judgement.CLEAR, Judgement.SKIP, Judgement.INCIDENT


def judged(tally: ScalerTally, steps: str) -> list[Judgement]:
    """One judgement per step: ``.`` is applied, ``x`` overflows, ``m`` overflows at the minimal scale, ``l`` loses."""
    seen = {
        ".": (False, False, False),
        "x": (True, False, False),
        "m": (True, False, True),
        "l": (True, True, False),
        "_": (False, False, True),
    }
    return [tally.judge(*seen[step]) for step in steps]


def test_the_search_for_the_first_scale_is_never_an_incident() -> None:
    assert judged(ScalerTally(3), "xxxxxxxx.") == [SKIP] * 8 + [CLEAR]


def test_after_the_first_applied_step_the_nth_skip_in_a_row_is_one() -> None:
    assert judged(ScalerTally(3), "xxxx.xxx") == [SKIP] * 4 + [CLEAR, SKIP, SKIP, INCIDENT]


def test_an_applied_step_ends_the_row() -> None:
    assert judged(ScalerTally(3), ".xx.xx.") == [CLEAR, SKIP, SKIP, CLEAR, SKIP, SKIP, CLEAR]


def test_after_an_incident_the_row_begins_again() -> None:
    assert judged(ScalerTally(2), ".xxxx") == [CLEAR, SKIP, INCIDENT, SKIP, INCIDENT]


def test_with_a_limit_of_one_each_skip_is_an_incident() -> None:
    assert judged(ScalerTally(1), ".x") == [CLEAR, INCIDENT]


@pytest.mark.parametrize("before", ["", ".", "xx"])
def test_overflow_at_the_minimal_scale_is_one_at_once(before: str) -> None:
    assert judged(ScalerTally(8), before + "m")[-1] is INCIDENT


def test_a_minimal_scale_without_overflow_is_none() -> None:
    assert judged(ScalerTally(8), "_") == [CLEAR]


@pytest.mark.parametrize("before", ["", ".", "xx"])
def test_a_bad_loss_is_one_at_once(before: str) -> None:
    assert judged(ScalerTally(8), before + "l")[-1] is INCIDENT


@pytest.mark.parametrize(
    ("steps", "before"), [("x", (True, 0)), ("xx", (True, 1)), (".xxx", (False, 2)), (".xl", (False, 1))]
)
def test_what_was_before_the_last_step_stays_known(steps: str, before: tuple[bool, int]) -> None:
    tally = ScalerTally(3)
    judged(tally, steps)
    assert tally.before == before
