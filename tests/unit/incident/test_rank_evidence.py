"""What a rank can say of its own gradients after an alarm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from megatron_nanguard.incident.rank_evidence import RankEvidence, Signs, _judge, by_layer, collect, kind_of
from megatron_nanguard.records.postmortem import BadParameter, Kind, Microbatch
from megatron_nanguard.records.trace import Pattern
from megatron_nanguard.sentinel.vote_flags import FP32_MAX
from megatron_nanguard.settings import Settings
from tests.unit.factories import bad_parameter
from tests.unit.guarded_run.watched import Watched
from tests.unit.one_rank import ONES, Trainer

NAN, INF = math.nan, math.inf
Watch = Callable[..., Watched]


def put(value: float, *, index: tuple[int, int] = (1, 0), weight: str = "first") -> Callable[[Trainer], None]:
    """Set one element of a gradient."""

    def change(made: Trainer) -> None:
        getattr(made.net, weight).weight.main_grad[index] = value

    return change


def patterns(evidence: RankEvidence) -> tuple[dict[str, Pattern], dict[str, Pattern]]:
    """Pattern by name, before and after the reduction."""
    return (
        {one.name: one.pattern for one in evidence.local.parameters},
        {one.name: one.pattern for one in evidence.reduced.parameters},
    )


def verdict(evidence: RankEvidence) -> str:
    """The flags that are on, in order."""
    names = ("suspicious_before", "suspicious_after", "bad_before", "bad_after", "bad_loss")
    return " ".join(name for name in names if getattr(evidence.signs, name))


# ---------------------------------------------------------------------- real buffers


def test_a_healthy_step_has_norms_and_nothing_bad(watch: Watch) -> None:
    seen = collect(watch().run(inputs=[ONES]), FP32_MAX)
    assert verdict(seen) == ""
    assert seen.local.norm == pytest.approx(math.sqrt(180.0))
    assert seen.reduced.norm == pytest.approx(math.sqrt(180.0))
    assert (seen.local.parameters, seen.reduced.parameters, seen.local.by_layer) == ((), (), {})
    assert seen.microbatches == (Microbatch(0, 57.0, None),)


@pytest.mark.parametrize(("value", "pattern"), [(NAN, "nan"), (INF, "inf"), (-INF, "inf")])
def test_a_bad_element_is_named_counted_and_placed(watch: Watch, value: float, pattern: Pattern) -> None:
    seen = collect(watch().run(before=put(value)), FP32_MAX)
    assert verdict(seen) == "suspicious_before suspicious_after bad_before bad_after"
    assert patterns(seen) == ({"first.weight": pattern}, {"first.weight": pattern})
    (bad,) = seen.local.parameters
    counts = (int(math.isnan(value)), int(math.isinf(value)))
    assert (bad.shape, bad.nan_count, bad.inf_count, bad.counted_elements) == ((2, 2), *counts, 4)
    assert bad.first_index == (1, 0)
    assert seen.local.by_layer == {"first": 1}


def test_what_goes_bad_after_the_reduction_does_not_make_the_rank_bad(watch: Watch) -> None:
    seen = collect(watch().run(after=put(NAN)), FP32_MAX)
    assert verdict(seen) == "suspicious_after bad_after"
    assert patterns(seen) == ({}, {"first.weight": "nan"})


def test_the_same_with_one_norm_per_bucket(watch: Watch) -> None:
    seen = collect(watch(Settings(on=True, norms="bucket")).run(after=put(NAN)), FP32_MAX)
    assert verdict(seen) == "suspicious_after bad_after"
    assert patterns(seen) == ({}, {"first.weight": "nan"})


def test_a_bucket_norm_names_what_can_still_be_counted(watch: Watch) -> None:
    seen = collect(watch(Settings(on=True, norms="bucket")).run(before=put(NAN)), FP32_MAX)
    assert verdict(seen) == "suspicious_before suspicious_after bad_before bad_after"
    assert patterns(seen)[0] == {"first.weight": "nan"}
    assert math.isnan(seen.local.norm or 0.0)


@pytest.mark.parametrize("norms", ["param", "bucket"])
def test_a_nan_that_the_reduction_overwrote_still_makes_the_rank_bad(watch: Watch, norms: str) -> None:
    def overwrite(made: Trainer) -> None:
        made.net.first.weight.main_grad.fill_(1.0)

    guarded = watch(Settings(on=True, norms=norms)).run(before=put(NAN), after=overwrite)
    guarded.step.before.forced_all_reduce = True
    seen = collect(guarded, FP32_MAX)
    assert verdict(seen) == "suspicious_before bad_before"
    assert [one.nan_count for one in seen.local.parameters] == ([None] if norms == "param" else [])


def test_finite_elements_whose_squares_overflow_are_named_finite(watch: Watch) -> None:
    seen = collect(watch().run(before=put(1e30)), FP32_MAX)
    assert verdict(seen) == "suspicious_before suspicious_after"
    assert patterns(seen) == ({"first.weight": "finite"}, {"first.weight": "finite"})
    (one,) = seen.local.parameters
    assert (one.norm, one.nan_count, one.inf_count) == (INF, 0, 0)


def test_the_limit_of_a_suspicion_falls_with_the_number_of_ranks(watch: Watch) -> None:
    guarded = watch().run(before=put(1e19))
    assert verdict(collect(guarded, FP32_MAX)) == ""
    assert verdict(collect(guarded, FP32_MAX / 8)) == "suspicious_before suspicious_after"


def test_a_bad_loss_is_found_with_its_microbatch(watch: Watch) -> None:
    def loss(output: torch.Tensor) -> Any:
        # Inf for the second micro-batch, with gradients as ever.
        return output.sum() + (INF if float(output.detach()) > 100 else 0.0), {}

    seen = collect(watch().run(inputs=[ONES, 2 * ONES], loss=loss), FP32_MAX)
    assert verdict(seen) == "bad_loss"
    assert seen.microbatches == (Microbatch(0, 57.0, None), Microbatch(1, INF, None))


def test_parameters_are_listed_in_the_order_of_the_model(watch: Watch) -> None:
    def change(made: Trainer) -> None:
        put(NAN, weight="second", index=(0, 0))(made)
        put(INF)(made)

    seen = collect(watch().run(before=change), FP32_MAX)
    assert list(patterns(seen)[0].items()) == [("first.weight", "inf"), ("second.weight", "nan")]


# ---------------------------------------------------------------------- the judge


def uncounted(**changes: Any) -> BadParameter:
    return bad_parameter("w", **{"nan_count": None, "inf_count": None, "counted_elements": None, **changes})


@pytest.mark.parametrize(
    ("counted", "norm", "is_bad_after", "pattern"),
    [
        # A NaN norm has a NaN element somewhere, whatever is left to count.
        (uncounted(pattern="finite"), NAN, False, "nan"),
        (bad_parameter("w", nan_count=2, inf_count=0), NAN, True, "nan"),
        (bad_parameter("w", pattern="inf", nan_count=0, inf_count=1), NAN, True, "nan+inf"),
        (bad_parameter("w", pattern="nan+inf", nan_count=1, inf_count=1), NAN, True, "nan+inf"),
        # An Inf norm with something counted is what was counted.
        (bad_parameter("w", pattern="inf", nan_count=0, inf_count=1), INF, True, "inf"),
        # With nothing counted the reduced values decide: a sum keeps an Inf.
        (uncounted(pattern="finite"), INF, True, "inf"),
        (uncounted(pattern="finite"), INF, False, "finite"),
        (bad_parameter("w", pattern="finite", nan_count=0, inf_count=0), INF, False, "finite"),
    ],
)
def test_norm_and_counts_make_the_pattern(
    counted: BadParameter, norm: float, is_bad_after: bool, pattern: Pattern
) -> None:
    judged = _judge(counted, norm, is_bad_after)
    assert judged.pattern == pattern
    assert judged.norm is not None
    assert math.isnan(judged.norm) if math.isnan(norm) else judged.norm == norm
    assert replace(judged, pattern="nan", norm=0.0) == replace(counted, pattern="nan", norm=0.0)


# ---------------------------------------------------------------------- layers


def test_parameters_are_counted_by_layer_or_first_name() -> None:
    names = [
        "embedding.word_embeddings.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.layers.11.self_attention.linear_qkv.weight",
        "mtp.layers.0.transformer_layer.mlp.linear_fc1.weight",
        "output_layer.weight",
    ]
    assert list(by_layer([bad_parameter(name) for name in names]).items()) == [
        ("embedding", 1),
        ("decoder.layers.0", 2),
        ("decoder.layers.11", 1),
        ("mtp.layers.0", 1),
        ("output_layer", 1),
    ]


def test_every_layer_has_its_norm_in_the_order_of_the_model(watch: Watch) -> None:
    seen = collect(watch().run(inputs=[ONES]), FP32_MAX)
    # Gradients 5, 5, 6, 6 and 3, 7: the roots of 122 and 58.
    assert list(seen.local.norm_by_layer.items()) == [("first", 11.0454), ("second", 7.61577)]


@pytest.mark.parametrize("value", [NAN, INF])
def test_only_the_layer_with_a_bad_gradient_has_a_bad_norm(watch: Watch, value: float) -> None:
    norms = collect(watch().run(before=put(value)), FP32_MAX).local.norm_by_layer
    assert str(norms["first"]) == str(value)
    assert math.isfinite(norms["second"] or 0.0)


def test_a_layer_that_was_not_looked_at_has_no_norm(watch: Watch) -> None:
    watched = watch()
    watched.trainer.net.second.weight.requires_grad_(False)
    assert collect(watched.guarded, FP32_MAX).local.norm_by_layer == {"first": None, "second": None}


def test_bucket_norms_tell_nothing_of_layers(watch: Watch) -> None:
    assert collect(watch(Settings(on=True, norms="bucket")).run(), FP32_MAX).local.norm_by_layer == {}


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ({}, Kind.DEAD_STEP),
        ({"suspicious_before": True}, Kind.NORM_OVERFLOW),
        ({"suspicious_after": True}, Kind.NORM_OVERFLOW),
        ({"bad_loss": True, "suspicious_after": True}, Kind.LOSS),
        ({"bad_after": True, "bad_loss": True}, Kind.GRADIENT_AFTER_REDUCTION),
        ({"bad_before": True, "bad_after": True, "bad_loss": True}, Kind.GRADIENT_BEFORE_REDUCTION),
    ],
)
def test_the_kind_as_far_as_one_rank_can_tell(seen: dict[str, bool], kind: Kind) -> None:
    assert kind_of([Signs(**seen)]) is kind
