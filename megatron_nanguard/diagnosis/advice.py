"""Known patterns, and what to do about them: the texts are data in advice*.json, the matching is here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.records.phrase import Phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.trace import GRADIENT_OF, OriginKind

HERE: Final = Path(__file__).parent
FILES: Final = {"en": "advice.json", "zh": "advice.zh.json"}


class Advice(NamedTuple):
    """One pattern in plain words.

    Attributes:
        what: what it is.
        check: where to look.
        change: what helps.
    """

    what: str
    check: str
    change: str


@functools.cache
def texts(lang: str = "en") -> dict[str, Advice]:
    """All advice by the name of its pattern, in one language."""
    known = orjson.loads((HERE / FILES[lang]).read_bytes())
    return {pattern: Advice(**{name: Phrase(words) for name, words in text.items()}) for pattern, text in known.items()}


def advise(evidence: Evidence) -> tuple[str, ...]:
    """Name the patterns that the facts show, in the order of the texts."""
    return tuple(pattern for pattern, is_there in PATTERNS.items() if is_there(evidence))


def _softmax(evidence: Evidence) -> bool:
    return any(
        origin.pattern == "nan" and origin.phase in ("forward", "recompute")
        for origin in origin_facts.operators(evidence, "softmax", "log_softmax", "scaled_dot_product_attention")
    )


def _in_loss(*names: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any(origin_facts.is_in_loss(origin) for origin in origin_facts.operators(evidence, *names))


def _made_by(*names: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any(True for _ in origin_facts.operators(evidence, *names))


def _exponential(evidence: Evidence) -> bool:
    return any("inf" in origin.pattern for origin in origin_facts.operators(evidence, *origin_facts.EXPONENTIAL))


def _sum_overflow(*, of_activations: bool) -> Callable[[Evidence], bool]:
    return lambda evidence: any(
        origin_facts.is_sum_overflow(origin) and (origin.phase in origin_facts.OF_ACTIVATIONS) is of_activations
        for origin in evidence.origins
    )


def _idle_expert(evidence: Evidence) -> bool:
    unwritten = origin_facts.of_kind(evidence, OriginKind.UNSEEN, OriginKind.NEVER_WRITTEN)
    divided = origin_facts.operators(evidence, "div")
    return any("expert" in origin.module for origin in (*unwritten, *divided))


def _audit(*kinds: str) -> Callable[[Evidence], bool]:
    return lambda evidence: bool(evidence.audit_of(*kinds))


def _outside(what: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any(origin_facts.is_outside(origin, what) for origin in evidence.origins)


def _scale_search(evidence: Evidence) -> bool:
    is_found = evidence.scaler is not None and evidence.scaler.lower_scale == "finite"
    return is_found or any(True for _ in origin_facts.of_kind(evidence, OriginKind.SCALER))


PATTERNS: Final[dict[str, Callable[[Evidence], bool]]] = {
    "fully_masked_softmax_row": _softmax,
    "zero_valid_tokens": lambda evidence: bool(evidence.zero_tokens),
    "loss_multiplied_by_mask": _in_loss("mul"),
    "log_outside_domain": _made_by("log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
    "guarded_division": lambda evidence: (
        origin_facts.has_finite_losses(evidence) and _made_by("div", "reciprocal")(evidence)
    ),
    "exp_overflow_in_the_branch_not_picked": lambda evidence: (
        origin_facts.has_finite_losses(evidence) and _exponential(evidence)
    ),
    "exp_overflow": lambda evidence: not origin_facts.has_finite_losses(evidence) and _exponential(evidence),
    "fp16_out_of_range": lambda evidence: any(
        origin_facts.is_narrow_overflow(origin) for origin in origin_facts.of_kind(evidence, OriginKind.OPERATOR)
    ),
    "sum_over_ranks_overflow": _sum_overflow(of_activations=False),
    "sum_of_activations_overflow": _sum_overflow(of_activations=True),
    "expert_without_tokens": _idle_expert,
    "buffer_never_written": lambda evidence: any(
        True for _ in origin_facts.of_kind(evidence, OriginKind.NEVER_WRITTEN)
    ),
    "stale_gradient_buffer": _outside(GRADIENT_OF),
    "waited_too_late": lambda evidence: (
        evidence.came_back("plain") in ("yes", "partly") and evidence.came_back("synchronous") == "no"
    ),
    "batch_changed_after_fetch": lambda evidence: bool(evidence.batch_changed),
    "bad_values_in_batch": _audit("batch"),
    "bad_moments": _audit("exp_avg", "exp_avg_sq"),
    "weight_bad_main_parameter_good": _audit("weight_only"),
    "bad_weights": lambda evidence: _audit("weight", "main_param")(evidence) or _outside("parameter")(evidence),
    "norm_overflow": lambda evidence: evidence.kind is Kind.NORM_OVERFLOW,
    "loss_scale_search": _scale_search,
    "saturating_device": lambda evidence: evidence.overflow_mode == "saturation",
}
