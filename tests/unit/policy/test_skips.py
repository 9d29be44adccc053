"""At most N skips in the last M steps."""

from __future__ import annotations

from megatron_nanguard.policy.skips import SkipBudget


def allowed(budget: SkipBudget, *steps: int) -> list[bool]:
    return [budget.allows(step) for step in steps]


def test_one_more_than_the_budget_is_refused() -> None:
    assert allowed(SkipBudget(2, 10), 1, 2, 3) == [True, True, False]


def test_a_skip_leaves_the_window_after_m_steps() -> None:
    # Steps 2 to 11 are the last ten at step 11, so the skip of step 1 is out of it and that of step 2 is not.
    assert allowed(SkipBudget(1, 10), 1, 11) == [True, True]
    assert allowed(SkipBudget(1, 10), 2, 11) == [True, False]


def test_a_refused_step_counts_as_well() -> None:
    assert allowed(SkipBudget(1, 5), 1, 2, 6) == [True, False, False]


def test_a_second_incident_of_a_step_counts_twice() -> None:
    assert allowed(SkipBudget(1, 5), 7, 7) == [True, False]
