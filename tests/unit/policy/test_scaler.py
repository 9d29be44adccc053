"""When a skip of the loss scaler is more than the scaler at work."""

from __future__ import annotations

import pytest

from megatron_nanguard.policy.scaler import Judgement, ScalerTally

CLEAR, SKIP, CHECK, INCIDENT = Judgement.CLEAR, Judgement.SKIP, Judgement.CHECK, Judgement.INCIDENT


def judged(tally: ScalerTally, steps: str) -> list[Judgement]:
    """One judgement per step.

    ``.`` is applied, ``x`` overflows, ``r`` overflows at a raised scale, ``m`` at the minimal one, ``l`` loses.
    """
    seen = {
        ".": (False, False, False, False),
        "x": (True, False, False, False),
        "r": (True, False, False, True),
        "m": (True, False, True, False),
        "l": (True, True, False, False),
        "_": (False, False, True, False),
    }
    return [tally.judge(*seen[step]) for step in steps]


def judged_and_checked(steps: str, window: int, *, is_bad: bool = False, limit: int = 8) -> list[Judgement]:
    """The same where every check that is due is made, and comes to the same."""
    tally, found = ScalerTally(limit, can_check=True), []
    for step in steps:
        found += judged(tally, step)
        if found[-1] is CHECK:
            tally.checked(window, is_bad)
    return found


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


# ---------------------------------------------------------------------- checks far below the scale


def test_the_first_overflow_at_a_proven_scale_is_checked() -> None:
    assert judged_and_checked("..x", 4) == [CLEAR, CLEAR, CHECK]


def test_the_search_for_the_first_scale_is_not_checked() -> None:
    assert judged_and_checked("xxxx", 4) == [SKIP] * 4


def test_a_scale_just_raised_is_not_checked_and_leaves_the_check_for_later() -> None:
    assert judged_and_checked(".rrx", 4) == [CLEAR, SKIP, SKIP, CHECK]


def test_one_check_at_most_per_window_of_steps() -> None:
    # Checked at step 2; with a window of 3 the next one is step 5 at the earliest, applied steps counted.
    assert judged_and_checked(".xxxx", 3) == [CLEAR, CHECK, SKIP, SKIP, CHECK]
    assert judged_and_checked(".x..x", 3) == [CLEAR, CHECK, CLEAR, CLEAR, CHECK]
    assert judged_and_checked(".x.x.x", 1) == [CLEAR, CHECK, CLEAR, CHECK, CLEAR, CHECK]


def test_without_a_replay_nothing_is_checked() -> None:
    assert judged(ScalerTally(8), ".xx") == [CLEAR, SKIP, SKIP]


def test_a_step_that_was_finite_far_below_counts_into_the_row() -> None:
    assert judged_and_checked(".xxx", 100, limit=3) == [CLEAR, CHECK, SKIP, INCIDENT]


def test_after_a_check_that_became_an_incident_the_row_begins_again() -> None:
    assert judged_and_checked(".xxxx", 100, is_bad=True, limit=3) == [CLEAR, CHECK, SKIP, SKIP, INCIDENT]


def test_the_limit_the_minimal_scale_and_a_bad_loss_go_before_a_check() -> None:
    assert judged_and_checked(".x", 4, limit=1) == [CLEAR, INCIDENT]
    assert judged_and_checked(".m", 4) == [CLEAR, INCIDENT]
    assert judged_and_checked(".l", 4) == [CLEAR, INCIDENT]
