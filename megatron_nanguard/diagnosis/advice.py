"""Which known patterns the facts of an incident show; what helps against each is in `advice*.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.trace import GRADIENT_OF, OriginKind


def advise(case: Case) -> tuple[str, ...]:
    """Name the patterns that the facts show, in the order of the texts."""
    return tuple(pattern for pattern, is_there in PATTERNS.items() if is_there(case))


def _made_by(*names: str) -> Callable[[Case], bool]:
    return lambda case: bool(case.origins_in(*names))


def _exponential(case: Case) -> bool:
    return any("inf" in origin.pattern for origin in case.origins_in(*origin_facts.EXPONENTIAL))


def _sum_overflow(*, of_activations: bool) -> Callable[[Case], bool]:
    return lambda case: any(
        origin_facts.is_sum_overflow(origin) and (origin.phase in origin_facts.OF_ACTIVATIONS) is of_activations
        for origin in case.incident.origin
    )


def _idle_expert(case: Case) -> bool:
    unwritten = case.origins_of(OriginKind.UNSEEN, OriginKind.NEVER_WRITTEN)
    divided = case.origins_in("div")
    return any("expert" in origin.module for origin in (*unwritten, *divided))


def _audit(*kinds: str) -> Callable[[Case], bool]:
    return lambda case: bool(case.audit_of(*kinds))


def _scale_search(case: Case) -> bool:
    is_found = case.scaler is not None and case.incident.replay.lower_scale == "finite"
    return is_found or bool(case.origins_of(OriginKind.SCALER))


PATTERNS: Final[dict[str, Callable[[Case], bool]]] = {
    "fully_masked_softmax_row": lambda case: bool(case.masked_softmaxes),
    "zero_valid_tokens": lambda case: bool(case.incident.zero_tokens),
    "loss_multiplied_by_mask": lambda case: any(map(origin_facts.is_in_loss, case.origins_in("mul"))),
    "log_outside_domain": _made_by("log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
    "guarded_division": lambda case: case.has_finite_losses and _made_by("div", "reciprocal")(case),
    "exp_overflow_in_the_branch_not_picked": lambda case: case.has_finite_losses and _exponential(case),
    "exp_overflow": lambda case: not case.has_finite_losses and _exponential(case),
    "fp16_out_of_range": lambda case: any(
        origin_facts.is_narrow_overflow(origin) for origin in case.origins_of(OriginKind.OPERATOR)
    ),
    "sum_over_ranks_overflow": _sum_overflow(of_activations=False),
    "sum_of_activations_overflow": _sum_overflow(of_activations=True),
    "expert_without_tokens": _idle_expert,
    "buffer_never_written": lambda case: bool(case.origins_of(OriginKind.NEVER_WRITTEN)),
    "stale_gradient_buffer": lambda case: bool(case.external_origins(GRADIENT_OF)),
    "waited_too_late": lambda case: (
        case.came_back("plain") in ("yes", "partly") and case.came_back("synchronous") == "no"
    ),
    "batch_changed_after_fetch": lambda case: bool(case.incident.changed_after_fetch),
    "bad_values_in_batch": _audit("batch"),
    "bad_moments": _audit("exp_avg", "exp_avg_sq"),
    "weight_bad_main_parameter_good": _audit("weight_only"),
    "bad_weights": lambda case: _audit("weight", "main_param")(case) or bool(case.external_origins("parameter")),
    "norm_overflow": lambda case: case.incident.kind is Kind.NORM_OVERFLOW,
    "loss_scale_search": _scale_search,
    "saturating_device": lambda case: case.saturates,
}
