"""What is done about an incident, and the words for it."""

from __future__ import annotations

from megatron_nanguard.policy.deciding import SkipBudget, decide
from megatron_nanguard.records.incident import PolicyOutcome


def test_abort_leaves_with_65() -> None:
    assert decide("abort", 3, SkipBudget(5, 100)) == PolicyOutcome(
        "abort", "abort", 65, "Policy abort: all ranks leave with exit code 65."
    )


def test_continue_applies_the_step() -> None:
    assert decide("continue", 3, SkipBudget(5, 100)) == PolicyOutcome(
        "continue", "continue", None, "Policy continue: the step is applied all the same."
    )


def test_skip_turns_into_abort_when_its_budget_is_spent() -> None:
    budget = SkipBudget(1, 50)
    assert decide("skip", 3, budget) == PolicyOutcome(
        "skip", "skip", None, "Policy skip: the step is skipped on all ranks."
    )
    assert decide("skip", 4, budget) == PolicyOutcome(
        "skip",
        "abort",
        65,
        "More than 1 of the last 50 steps were skipped (--nanguard-max-skips): all ranks leave with exit code 65.",
    )


def test_abort_and_continue_spend_no_budget() -> None:
    budget = SkipBudget(1, 50)
    decide("abort", 1, budget)
    decide("continue", 2, budget)
    assert decide("skip", 3, budget).action == "skip"


def test_a_bad_copy_of_a_good_main_parameter_is_not_skipped_and_spends_no_budget() -> None:
    budget = SkipBudget(1, 50)
    decided = decide("skip", 3, budget, has_bad_copy=True)
    assert (decided.name, decided.action, decided.exit_code) == ("skip", "abort", 65)
    assert decided.words.startswith("A model weight is bad though its main parameter is good")
    assert decide("skip", 4, budget).action == "skip"
    assert decide("continue", 5, budget, has_bad_copy=True).action == "continue"


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
