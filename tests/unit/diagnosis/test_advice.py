"""Every pattern has a text, and is named when its facts are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.diagnosis.advice import PATTERNS, advise
from megatron_nanguard.diagnosis.texts import advice_texts
from megatron_nanguard.records.incident import BatchSpot, DeviceCount, MicrobatchLosses
from megatron_nanguard.records.postmortem import Kind, ScalerState
from megatron_nanguard.records.step.replay import AuditFinding, ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import NAN, case, origin

FINITE = (MicrobatchLosses(2, 2, 1.0, 1.5, ()),)
INF = replace(NAN, pattern="inf")

SHOWN: dict[str, dict[str, Any]] = {
    "fully_masked_softmax_row": {"origin": (origin(operator="_softmax", phase="forward"),)},
    "zero_valid_tokens": {"zero_tokens": (BatchSpot(5, 2),)},
    "loss_multiplied_by_mask": {"origin": (origin(operator="mul", module="", phase="forward"),)},
    "log_outside_domain": {"origin": (origin(),)},
    "guarded_division": {"origin": (origin(operator="div"),), "losses": FINITE},
    "exp_overflow_in_the_branch_not_picked": {
        "origin": (origin(operator="exp", pattern="inf", facts=INF),),
        "losses": FINITE,
    },
    "exp_overflow": {"origin": (origin(operator="exp", pattern="inf", facts=INF),)},
    "fp16_out_of_range": {"origin": (origin(operator="mm", pattern="inf", facts=replace(INF, dtype="float16")),)},
    "sum_over_ranks_overflow": {
        "origin": (origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", phase="finalize"),)
    },
    "sum_of_activations_overflow": {
        "origin": (origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", phase="forward"),)
    },
    "expert_without_tokens": {"origin": (origin(kind=OriginKind.UNSEEN, module="decoder.layers.0.mlp.experts"),)},
    "buffer_never_written": {"origin": (origin(kind=OriginKind.NEVER_WRITTEN),)},
    "stale_gradient_buffer": {"origin": (origin(kind=OriginKind.OUTSIDE, operator="gradient of w"),)},
    "waited_too_late": {"passes": (ReplayPass("plain", "yes"), ReplayPass("synchronous", "no"))},
    "batch_changed_after_fetch": {"changed_after_fetch": (BatchSpot(5, 2),)},
    "bad_values_in_batch": {"audit": (AuditFinding("batch", "b", "nan", 0),)},
    "bad_moments": {"audit": (AuditFinding("exp_avg_sq", "w", "negative", 0),)},
    "weight_bad_main_parameter_good": {"audit": (AuditFinding("weight_only", "w", "nan", 0),)},
    "bad_weights": {"origin": (origin(kind=OriginKind.OUTSIDE, operator="parameter w"),)},
    "norm_overflow": {"kind": Kind.NORM_OVERFLOW},
    "loss_scale_search": {"scaler": ScalerState(False, False, 0), "loss_scale": 65536.0, "lower_scale": "finite"},
    "saturating_device": {"devices": (DeviceCount("npu", "Test NPU", "saturation", 8),)},
}


def test_every_pattern_has_a_text_and_every_text_a_pattern() -> None:
    assert list(advice_texts()) == list(PATTERNS)
    assert all(text.what and text.check and text.change for text in advice_texts().values())


def test_every_pattern_is_tried_here() -> None:
    assert list(SHOWN) == list(PATTERNS)


@pytest.mark.parametrize(("pattern", "facts"), SHOWN.items(), ids=SHOWN)
def test_a_pattern_is_named_alone_when_its_facts_are_there(pattern: str, facts: dict[str, Any]) -> None:
    assert advise(case(**facts)) == (pattern,)


def test_nothing_known_gives_no_advice() -> None:
    assert advise(case()) == ()
