"""One switch that separates two causes, the cheapest first."""

from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis.next_steps import cheapest
from megatron_nanguard.diagnosis.next_steps.confirmations import CONFIRMATIONS
from megatron_nanguard.diagnosis.next_steps.experiments import EXPERIMENTS
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass
from tests.unit.diagnosis.factories import arbitration, case, changed, earlier, origin


def test_the_saved_call_is_the_cheapest() -> None:
    assert cheapest("operator", "numerics", case(arbitrations=(arbitration(),))) == (
        "python bundle/repro.py --device cpu: clean points to faulty operator, bad again to numerics"
    )


def test_what_was_done_is_not_asked_for_again() -> None:
    known = case(arbitrations=(arbitration(reference_fp64="bad"),))

    assert not cheapest("operator", "numerics", known).startswith("python bundle/repro.py --device cpu")
    blocking = "the same steps with CUDA_LAUNCH_BLOCKING=1"
    assert cheapest("operator", "uninitialised_or_race", case()).startswith(blocking)
    done = case(passes=(ReplayPass("synchronous", "yes"),))
    assert not cheapest("operator", "uninitialised_or_race", done).startswith(blocking)


def test_a_switch_that_the_run_does_not_have_is_not_named() -> None:
    done = case(passes=(ReplayPass("synchronous", "yes"),), host_options={"overlap_grad_reduce": "True"})

    overlap = "the same steps without --overlap-grad-reduce: "
    assert cheapest("operator", "uninitialised_or_race", done).startswith(overlap)
    assert overlap not in cheapest("operator", "uninitialised_or_race", case(passes=done.incident.replay.passes))
    off = changed(done, host_options={"overlap_grad_reduce": "False"})
    assert overlap not in cheapest("operator", "uninitialised_or_race", off)


def test_a_flag_is_named_with_its_value_and_never_proposed_with_it() -> None:
    fused = case(host_options={"transformer_impl": "transformer_engine"})
    local = case(host_options={"transformer_impl": "local"})

    assert cheapest("operator", None, fused) == (
        "the same steps with --transformer-impl local (now transformer_engine): clean if a fused kernel is wrong"
    )
    assert "--transformer-impl" not in cheapest("operator", None, local)
    assert "--transformer-impl" not in cheapest("operator", "numerics", local)


def test_a_fault_that_went_away_here_takes_more_than_one_clean_run_elsewhere() -> None:
    gone = case(passes=(ReplayPass("plain", "no"), ReplayPass("synchronous", "no")))

    assert cheapest("hardware_transient", "uninitialised_or_race", gone) == (
        "the same steps several times on this host, and as often on another: bad only here points to hardware, "
        "bad on both to memory or a race; never again leaves it open"
    )


def test_the_order_of_two_causes_does_not_change_the_sentence() -> None:
    assert cheapest("operator", "data", case()) == cheapest("data", "operator", case())


def test_another_attention_is_tried_where_it_began_in_attention() -> None:
    attention = case(origin=(origin(module="decoder.layers.0.self_attention"),))

    assert "--attention-backend unfused" in cheapest("operator", "numerics", attention)


def test_a_cause_without_rival_has_an_experiment_of_its_own() -> None:
    assert cheapest("state_corruption", None, case()) == (
        "the same steps from the checkpoint before the last: clean if the state went bad after it was saved"
    )
    assert {each.cause for each in CONFIRMATIONS} == {*Cause}


def test_no_experiment_predicts_both_outcomes_of_a_cause() -> None:
    assert [experiment.do for experiment in EXPERIMENTS if {*experiment.clean} & {*experiment.bad}] == []


def test_a_cause_without_a_confirmation_of_its_own_gets_the_general_ones() -> None:
    general = cheapest("undecided", None, case())

    assert CONFIRMATIONS[-1].cause == Cause.UNDECIDED and CONFIRMATIONS[-1].is_open(case())
    assert general.startswith("the same steps with CUDA_LAUNCH_BLOCKING=1")
    assert cheapest("a cause of another version", None, case()) == general


def test_steps_that_were_bad_on_one_rank_again_move_the_rank() -> None:
    before = (earlier(2, 1), earlier(3, 1))
    again = case(step=4, ranks=RankSets((1,), (0,), ()), earlier=before)

    words = (
        "3 bad steps on rank 1 (2, 3, 4): move rank 1 to another device or host; what follows the device is hardware, "
        "what stays with the rank is software or data"
    )
    assert cheapest("hardware_transient", "hardware_persistent", again) == words
    assert cheapest("hardware_persistent", None, again) == words
    skip = "the next steps with --nanguard-on-nonfinite skip"
    assert skip not in cheapest("data", "hardware_persistent", again)
    assert cheapest("data", "hardware_persistent", changed(again, earlier=())).startswith(skip)


@pytest.mark.parametrize(
    ("backend", "named"), [("cuda", "NCCL_ALGO=Ring"), ("npu", "HCCL_DETERMINISTIC=true"), ("cpu", "what each gets")]
)
def test_a_setting_of_a_transport_is_named_where_the_job_has_it(backend: str, named: str) -> None:
    on_cpu = case(devices=(DeviceCount("cpu", "", "", 8),))
    words = cheapest("communication", None, case(devices=(DeviceCount(backend, "", "", 8),)))

    assert named in words
    assert ("NCCL" in words, "HCCL" in words) == (backend == "cuda", backend == "npu")
    assert not any(name in cheapest("communication", "numerics", on_cpu) for name in ("NCCL", "CUDA"))
