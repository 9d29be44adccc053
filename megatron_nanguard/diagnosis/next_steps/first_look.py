"""The first clue, before any experiment: the line of source, the sample or the buffer that the facts point at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.trace import OriginKind

CONFIRM: Final = phrase("{look}; confirm with: python bundle/repro.py")


def first_look(cause: str, case: Case) -> str:
    """Where to look first; empty where the facts point at nothing that can be opened.

    Args:
        cause: its code.
        case: the incident.
    """
    look = LOOKS.get(cause)
    return look(case) if look else ""


def _values(case: Case) -> str:
    """The line of the operator, with the values that it got where they lie outside of its domain."""
    origin = _first(case, OriginKind.OPERATOR)
    if origin is None or not origin.source_line:
        return _sum_over_ranks(case)
    line, operator = origin.source_line, origin.operator
    ends, name = origin_facts.input_range(origin), origin_facts.base_name(operator)
    if ends is None or name not in {*origin_facts.DOMAINS, *origin_facts.EXPONENTIAL}:
        look = phrase("open {line}, and look at what {operator} gets there", line=line, operator=operator)
    else:
        look = phrase(
            "open {line}, and find why {operator} gets values from {lowest:g} to {highest:g} there",
            line=line,
            operator=operator,
            lowest=ends[0],
            highest=ends[1],
        )
    return _confirmed(look, case)


def _sum_over_ranks(case: Case) -> str:
    """The line of a sum over ranks that overflows, with the largest value that was sent where it is known."""
    origin = _first(case, OriginKind.COMMUNICATION)
    if origin is None or not origin.source_line or not origin_facts.is_sum_overflow(origin):
        return ""
    sizes = [each.absmax for each in origin.inputs if each.absmax is not None]
    if sizes:
        check = phrase(
            "open {line}: each rank sends {dtype} up to {largest:g}",
            line=origin.source_line,
            dtype=origin.inputs[0].dtype,
            largest=max(sizes),
        )
    else:
        check = phrase("print type and largest value that each rank sends at {line}", line=origin.source_line)
    return phrase("{check}; then reduce in float32 there, or scale down before the sum", check=check)


def _function(case: Case) -> str:
    """The custom backward in which it began."""
    origin = _first(case, OriginKind.OPERATOR, OriginKind.UNSEEN)
    if origin is None or not origin.function_line:
        return ""
    look = phrase(
        "read {function} first: the backward of a custom autograd.Function, in which it began",
        function=origin.function_line,
    )
    return _confirmed(look, case)


def _sample(case: Case) -> str:
    """The sample that was bad as it was fetched."""
    found = next(iter(case.audit_of("batch")), None)
    if found is None:
        return ""
    return phrase("find the sample behind {name} on rank {rank}: it held {pattern} as it was fetched", **vars(found))


def _memory(case: Case) -> str:
    """What writes into the batch after it was fetched, or the line of the operator that leaves memory unwritten."""
    if case.incident.changed_after_fetch:
        ranks = sorted({spot.rank for spot in case.incident.changed_after_fetch})
        return phrase(
            "find what writes into the batch of {ranks} after it was fetched, such as a pinned buffer that the loader "
            "uses again",
            ranks=name_ranks(ranks),
        )
    origin = _first(case, OriginKind.NEVER_WRITTEN)
    if origin is None or not origin.source_line:
        return ""
    return phrase(
        "open {line}, and find what {operator} leaves unwritten there",
        line=origin.source_line,
        operator=origin.operator,
    )


LOOKS: Final[dict[str, Callable[[Case], str]]] = {
    Cause.DATA: _sample,
    Cause.LOSS_OR_MASK: _values,
    Cause.NUMERICS: _values,
    Cause.OPERATOR: _function,
    Cause.UNINITIALISED_OR_RACE: _memory,
}
"""By cause. The facts of the other causes point at no place that can be opened."""


def _first(case: Case, *kinds: OriginKind) -> Origin | None:
    return next(iter(case.origins_of(*kinds)), None)


def _confirmed(look: str, case: Case) -> str:
    return CONFIRM.format(look=look) if case.has_saved_call else look
