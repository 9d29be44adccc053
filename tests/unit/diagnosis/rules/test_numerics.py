"""Range and domain, and what a reference says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.postmortem import ScalerState
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind, TensorFacts
from tests.unit.diagnosis.factories import FINITE, NAN, arbitration, case, origin

judge = RULES[Cause.NUMERICS].reading

LOG = "log in decoder.layers.3.mlp"
CALL = "aten.log.default on rank 5"


def test_a_log_that_is_bad_in_higher_precision_too() -> None:
    assert judge(case(origin=(origin(),), arbitrations=(arbitration(reference_fp64="bad"),))) == RankedCause(
        cause="numerics",
        confidence=0.95,
        for_=(f"values outside of its domain: {LOG}", f"{CALL} is not finite in higher precision either"),
        against=(),
        not_tested=(),
        next="",
    )


def test_the_values_outside_of_the_domain_are_named_with_their_sign() -> None:
    measured = origin(inputs=(replace(FINITE, lowest=-2.78906, highest=-1.5),))
    healthy = origin(inputs=(replace(FINITE, lowest=1.5, highest=2.78906),))

    found = judge(case(origin=(measured,)))
    assert found is not None
    assert found.for_ == (f"values from -2.78906 to -1.5, outside of its domain: {LOG}",)
    assert judge(case(origin=(healthy,))) is None


def test_a_finite_reference_and_a_finite_peer_acquit_the_mathematics() -> None:
    found = judge(case(origin=(origin(),), arbitrations=(arbitration(reference_fp64="finite", peer="finite"),)))

    assert found is not None
    assert found.confidence < 0.01
    assert found.against == (
        f"{CALL} is finite in higher precision, and fits",
        f"{CALL} is finite on another device",
    )


def test_a_call_with_bad_inputs_proves_nothing() -> None:
    with_bad_inputs = arbitration(reference_fp64="bad", inputs_bad=True)

    assert judge(case(arbitrations=(with_bad_inputs,))) is None


def test_what_does_not_fit_float16_is_named_with_its_type() -> None:
    narrow = origin(operator="mm", pattern="inf", facts=replace(NAN, pattern="inf", dtype="float16"))

    found = judge(case(origin=(narrow,)))

    assert found is not None
    assert found.for_ == ("finite values leave the range of float16: mm in decoder.layers.3.mlp",)
    assert found.not_tested == ("the suspect call in float64",)


def test_large_inputs_make_an_overflow_likely() -> None:
    overflow = origin(operator="mm", pattern="inf", facts=replace(NAN, pattern="inf"))
    large = replace(overflow, inputs=(TensorFacts("0", (4,), "bfloat16", "finite", absmax=1e30),))

    found, found_large = judge(case(origin=(overflow,))), judge(case(origin=(large,)))

    assert found is not None and found_large is not None
    assert (found.confidence, found_large.confidence) == (0.5, 0.73)


@pytest.mark.parametrize("operator", ["allreduce_", "all_reduce", "_reduce_scatter_base_", "reduce_scatter_tensor"])
def test_a_sum_over_ranks_that_is_inf_on_all_of_them(operator: str) -> None:
    collective = origin(kind=OriginKind.COMMUNICATION, operator=operator, pattern="inf", ranks=(4, 5))

    found = judge(case(origin=(collective,)))

    assert found is not None and found.confidence == 0.88
    assert judge(case(origin=(replace(collective, pattern="nan"),))) is None
    assert judge(case(origin=(replace(collective, operator="recv_"),))) is not None


def test_an_overflow_at_every_scale_is_the_numbers() -> None:
    found = judge(case(scaler=ScalerState(False, False, 3), loss_scale=16.0, lower_scale="bad"))

    assert found is not None
    assert found.for_ == (
        "overflow also far below the loss scale of 16",
        "3 skips in a row before this one: the scale is sinking",
    )


def test_a_clean_replay_speaks_against_it() -> None:
    found = judge(case(origin=(origin(),), passes=(ReplayPass("plain", "no"),)))

    assert found is not None and found.confidence < 0.3


def test_a_nan_of_a_kernel_is_no_matter_of_range() -> None:
    assert judge(case(origin=(origin(operator="mm"),))) is None


def test_a_fault_that_a_lower_scale_leaves_is_not_the_numbers_for_that() -> None:
    lower = {"scaler": ScalerState(False, False, 0), "loss_scale": 16.0, "lower_scale": "bad"}
    half = replace(NAN, dtype="float16", pattern="inf")
    overflow = origin(operator="mul.Tensor", pattern="inf", facts=half)

    assert judge(case(origin=(origin(operator="mm"),), **lower)) is None
    found = judge(case(origin=(overflow,), **lower))
    assert found is not None and found.for_[1] == "overflow also far below the loss scale of 16"


def test_an_overflow_that_a_lower_scale_cures_speaks_against_it() -> None:
    half = replace(NAN, dtype="float16", pattern="inf")
    overflow = origin(operator="mul.Tensor", pattern="inf", facts=half)
    found = judge(case(origin=(overflow,), scaler=ScalerState(False, False, 0), loss_scale=16.0, lower_scale="finite"))

    assert found is not None and found.confidence == 0.27
    assert found.against == ("finite far below the loss scale of 16: the scale is too large",)


def test_a_collective_is_not_run_alone() -> None:
    overflow = origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf")

    found = judge(case(origin=(overflow,)))

    assert found is not None and found.not_tested == ("the sum in float64: collectives are not run alone",)


def test_a_region_that_got_huge_values_may_have_overflowed() -> None:
    region = origin(kind=OriginKind.UNSEEN, operator="_Linear.forward", inputs=(replace(FINITE, absmax=1e30),))
    healthy = replace(region, inputs=(replace(FINITE, absmax=3.0),))

    found = judge(case(origin=(region,)))
    assert found is not None
    assert found.for_ == ("values up to 1e+30 went in: _Linear.forward in decoder.layers.3.mlp",)
    assert judge(case(origin=(healthy,))) is None
