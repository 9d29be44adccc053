"""A wrong operator is wrong everywhere, and its reference is not."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind, TensorFacts
from tests.unit.diagnosis.factories import FINITE, NAN, arbitration, case, origin

judge = RULES[Cause.OPERATOR].reading

KERNEL = origin(operator="FusedAttentionBackward")
ALWAYS = arbitration(repeats=4, repeats_bad=4, reference_fp64="finite")


def confidence(cause: RankedCause | None) -> float:
    assert cause is not None
    return cause.confidence


def test_an_operator_alone_is_a_suspicion() -> None:
    assert judge(case(origin=(KERNEL,))) == RankedCause(
        cause="operator",
        confidence=0.38,
        for_=("finite values in, nan out: FusedAttentionBackward in decoder.layers.3.mlp",),
        against=(),
        not_tested=("the suspect call on another device and in float64",),
        next="",
    )


def test_a_finite_reference_speaks_for_it_and_a_second_bad_device_settles_it() -> None:
    here = judge(case(origin=(KERNEL,), arbitrations=(ALWAYS,)))
    both = judge(case(origin=(KERNEL,), arbitrations=(replace(ALWAYS, peer="bad"),)))

    assert (confidence(here), confidence(both)) == (0.82, 0.97)
    assert here is not None and here.not_tested == ("aten.log.default on rank 5 on another device",)


def test_a_finite_second_device_acquits_it() -> None:
    found = judge(case(origin=(KERNEL,), arbitrations=(replace(ALWAYS, peer="finite"),)))

    assert found is not None
    assert found.against == ("aten.log.default on rank 5 is finite on another device",)
    assert found.confidence < 0.1


def test_a_bad_reference_and_a_result_that_does_not_fit_acquit_it() -> None:
    for outcome in ({"reference_fp64": "bad"}, {"out_of_range": True}):
        found = judge(case(origin=(KERNEL,), arbitrations=(replace(ALWAYS, **outcome),)))
        assert found is not None and found.confidence < 0.1


def test_a_call_that_is_finite_again_and_a_clean_replay_speak_against_it() -> None:
    found = judge(case(origin=(KERNEL,), arbitrations=(arbitration(repeats=4),), passes=(ReplayPass("plain", "no"),)))

    assert found is not None
    assert found.against == (
        "aten.log.default on rank 5 is finite 4 times of 4",
        "the same call was finite in the replay",
    )


def test_the_same_failure_on_other_ranks_speaks_for_it() -> None:
    alike = judge(case(origin=(KERNEL, replace(KERNEL, rank=7))))

    assert alike is not None and alike.for_[-1] == "it fails alike on ranks 5, 7"


def test_an_inf_of_small_inputs_is_more_suspicious() -> None:
    overflow = replace(KERNEL, pattern="inf", facts=replace(NAN, pattern="inf"))
    small = replace(overflow, inputs=(TensorFacts("0", (4,), "bfloat16", "finite", absmax=2.0),))

    assert confidence(judge(case(origin=(small,)))) > confidence(judge(case(origin=(overflow,))))


def test_a_nan_that_the_code_writes_itself_was_no_finite_value_in() -> None:
    number = TensorFacts("values", (), "number", "nan")
    written = replace(KERNEL, operator="index_put_", inputs=(FINITE, number))
    of_function = replace(written, function_line="model.py:9 in Poisoned.backward")

    found = judge(case(origin=(written,)))
    assert found is not None
    assert found.for_ == (
        "NaN is written by the code itself, as the argument values: index_put_ in decoder.layers.3.mlp",
    )
    found = judge(case(origin=(of_function,)))
    assert found is not None
    assert found.for_ == (
        "NaN is written by the code of an autograd.Function, as the argument values: index_put_ in "
        "decoder.layers.3.mlp, model.py:9 in Poisoned.backward",
    )


def test_what_is_not_known_of_the_inputs_is_said() -> None:
    unrecorded = judge(case(origin=(replace(KERNEL, inputs=()),)))
    assert unrecorded is not None and unrecorded.for_[0].startswith("what went in was not recorded, nan out: ")
    assert unrecorded.confidence < confidence(judge(case(origin=(KERNEL,))))
    # The Inf of a mask went in: no finite values, and nothing to accuse the operator of.
    assert judge(case(origin=(replace(KERNEL, inputs=(replace(FINITE, pattern="inf"),)),))) is None


def test_a_log_of_values_inside_of_its_domain_is_suspect() -> None:
    inside = origin(inputs=(replace(FINITE, lowest=0.5, highest=2.0),))
    outside = origin(inputs=(replace(FINITE, lowest=-2.5, highest=2.0),))

    found = judge(case(origin=(inside,)))
    assert found is not None
    assert found.for_ == ("values from 0.5 to 2, inside of its domain, and nan out: log in decoder.layers.3.mlp",)
    assert judge(case(origin=(outside,))) is None


def test_an_operator_used_outside_of_its_domain_is_not_suspect() -> None:
    assert judge(case(origin=(origin(operator="log"),))) is None


def test_a_bad_weight_is_no_operator() -> None:
    assert judge(case(origin=(origin(kind=OriginKind.OUTSIDE, operator="parameter w"),))) is None


SMALL = TensorFacts("x", (4, 8), "bfloat16", "finite", absmax=3.0)
REGION = origin(kind=OriginKind.UNSEEN, operator="_Linear.forward", phase="forward", inputs=(SMALL,))
OF_REGION = arbitration(operator="_Linear.forward", repeats=8, repeats_bad=8, zero_filled=4, zero_filled_bad=4)


def test_a_region_that_is_always_bad_on_ordinary_inputs_is_wrong_without_a_reference() -> None:
    found = judge(case(origin=(REGION,), arbitrations=(OF_REGION,)))

    assert found is not None
    assert found.for_ == (
        "finite values in, nan out: _Linear.forward in decoder.layers.3.mlp",
        "_Linear.forward on rank 5 is bad 8 times of 8 on finite inputs of ordinary size",
    )
    assert found.confidence == 0.82


def test_a_region_of_which_an_argument_was_not_seen_is_no_certain_cause() -> None:
    hidden = replace(REGION, not_seen=("quantizer",))
    found = judge(case(origin=(hidden,), arbitrations=(replace(OF_REGION, peer="bad"),)))

    assert found is not None
    assert found.for_[0] == (
        "finite values in as far as they were seen, without quantizer, nan out: _Linear.forward in decoder.layers.3.mlp"
    )
    assert found.confidence == 0.45
    assert "what was in quantizer" in found.not_tested


def test_a_region_that_got_absurd_values_is_no_certain_cause_unless_a_reference_is_finite() -> None:
    huge = replace(REGION, inputs=(replace(SMALL, absmax=1e30),))
    alone = judge(case(origin=(huge,), arbitrations=(replace(OF_REGION, peer="bad"),)))
    referred = judge(case(origin=(huge,), arbitrations=(replace(OF_REGION, reference_fp64="finite"),)))

    assert confidence(alone) == 0.45
    assert confidence(referred) == 0.82


def test_a_region_that_is_finite_in_zeroed_memory_is_not_wrong_by_itself() -> None:
    follows = replace(OF_REGION, repeats_bad=4, zero_filled_bad=0)
    found = judge(case(origin=(REGION,), arbitrations=(follows,)))

    assert found is not None
    assert found.against == ("_Linear.forward on rank 5 is finite where fresh memory is filled with zeros first",)
