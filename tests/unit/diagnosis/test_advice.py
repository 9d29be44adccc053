"""Every pattern has a text, and is named when its facts are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.diagnosis.advice import PATTERNS, advise, texts
from megatron_nanguard.diagnosis.evidence import ScalerFacts, Spot
from megatron_nanguard.records.audit import AuditFinding
from megatron_nanguard.records.incident import MicrobatchLosses
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import NAN, evidence, origin

FINITE = (MicrobatchLosses(2, 2, 1.0, 1.5, ()),)
INF = replace(NAN, pattern="inf")

SHOWN: dict[str, dict[str, Any]] = {
    "fully_masked_softmax_row": {"origins": (origin(operator="_softmax", phase="forward"),)},
    "zero_valid_tokens": {"zero_tokens": (Spot(5, 2),)},
    "loss_multiplied_by_mask": {"origins": (origin(operator="mul", module="", phase="forward"),)},
    "log_outside_domain": {"origins": (origin(),)},
    "guarded_division": {"origins": (origin(operator="div"),), "losses": FINITE},
    "exp_overflow_in_the_branch_not_picked": {
        "origins": (origin(operator="exp", pattern="inf", facts=INF),),
        "losses": FINITE,
    },
    "exp_overflow": {"origins": (origin(operator="exp", pattern="inf", facts=INF),)},
    "fp16_out_of_range": {"origins": (origin(operator="mm", pattern="inf", facts=replace(INF, dtype="float16")),)},
    "sum_over_ranks_overflow": {
        "origins": (origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", phase="finalize"),)
    },
    "sum_of_activations_overflow": {
        "origins": (origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", phase="forward"),)
    },
    "expert_without_tokens": {"origins": (origin(kind=OriginKind.UNSEEN, module="decoder.layers.0.mlp.experts"),)},
    "buffer_never_written": {"origins": (origin(kind=OriginKind.NEVER_WRITTEN),)},
    "stale_gradient_buffer": {"origins": (origin(kind=OriginKind.OUTSIDE, operator="gradient of w"),)},
    "waited_too_late": {"passes": (ReplayPass("plain", "yes"), ReplayPass("synchronous", "no"))},
    "batch_changed_after_fetch": {"batch_changed": (Spot(5, 2),)},
    "bad_values_in_batch": {"audit": (AuditFinding("batch", "b", "nan", 0),)},
    "bad_moments": {"audit": (AuditFinding("exp_avg_sq", "w", "negative", 0),)},
    "weight_bad_main_parameter_good": {"audit": (AuditFinding("weight_only", "w", "nan", 0),)},
    "bad_weights": {"origins": (origin(kind=OriginKind.OUTSIDE, operator="parameter w"),)},
    "norm_overflow": {"kind": Kind.NORM_OVERFLOW},
    "loss_scale_search": {"scaler": ScalerFacts(65536.0, lower_scale="finite")},
    "saturating_device": {"overflow_mode": "saturation"},
}


def test_every_pattern_has_a_text_and_every_text_a_pattern() -> None:
    assert list(texts()) == list(PATTERNS)
    assert all(text.what and text.check and text.change for text in texts().values())


def test_every_pattern_is_tried_here() -> None:
    assert list(SHOWN) == list(PATTERNS)


@pytest.mark.parametrize(("pattern", "facts"), SHOWN.items(), ids=SHOWN)
def test_a_pattern_is_named_alone_when_its_facts_are_there(pattern: str, facts: dict[str, Any]) -> None:
    assert advise(evidence(**facts)) == (pattern,)


def test_nothing_known_gives_no_advice() -> None:
    assert advise(evidence()) == ()
