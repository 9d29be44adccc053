"""One switch that separates two causes, the cheapest first."""

from __future__ import annotations

from megatron_nanguard.diagnosis import RULES
from megatron_nanguard.diagnosis.experiments import ALONE, CHEAPEST_FIRST, cheapest
from megatron_nanguard.records.replay import ReplayPass
from tests.unit.diagnosis.factories import arbitration, evidence, origin

CAUSES = {rule.__module__.rpartition(".")[2] for rule in RULES}


def test_the_saved_call_is_the_cheapest() -> None:
    assert cheapest("operator", "numerics", evidence(arbitrations=(arbitration(),))) == (
        "python bundle/repro.py --device cpu: clean if operator, bad again if numerics"
    )


def test_what_was_done_is_not_asked_for_again() -> None:
    known = evidence(arbitrations=(arbitration(reference_fp64="bad"),))

    assert not cheapest("operator", "numerics", known).startswith("python bundle/repro.py --device cpu")
    blocking = "the same steps with CUDA_LAUNCH_BLOCKING=1"
    assert cheapest("operator", "uninitialised_or_race", evidence()).startswith(blocking)
    done = evidence(passes=(ReplayPass("synchronous", "yes"),))
    assert not cheapest("operator", "uninitialised_or_race", done).startswith(blocking)


def test_a_switch_that_the_run_does_not_have_is_not_named() -> None:
    done = evidence(passes=(ReplayPass("synchronous", "yes"),), host_options=frozenset({"overlap_grad_reduce"}))

    overlap = "the same steps without --overlap-grad-reduce: "
    assert cheapest("operator", "uninitialised_or_race", done).startswith(overlap)
    assert overlap not in cheapest("operator", "uninitialised_or_race", evidence(passes=done.passes))


def test_another_attention_is_tried_where_attention_is_accused() -> None:
    attention = evidence(origins=(origin(module="decoder.layers.0.self_attention"),))

    assert "--attention-backend unfused" in cheapest("operator", "numerics", attention)


def test_a_cause_without_rival_has_an_experiment_of_its_own() -> None:
    assert cheapest("state_corruption", None, evidence()) == "the same steps from the checkpoint before the last"
    assert set(ALONE) == {*CAUSES, "undecided"}


def test_every_prediction_is_of_a_cause_that_exists() -> None:
    assert {cause for experiment in CHEAPEST_FIRST for cause in experiment.outcomes} <= CAUSES
