"""What is done about an incident, and the words for it."""

from __future__ import annotations

from megatron_nanguard.policy.deciding import decide
from megatron_nanguard.policy.skips import SkipBudget
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
