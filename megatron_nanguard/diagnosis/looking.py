"""The first clue, before any experiment: the line of source, the sample or the buffer that the facts point at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.trials import has_call
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.trace import OriginKind

READ_FUNCTION: Final = phrase("read {function} first: the backward of a custom autograd.Function, in which it began")
OPEN_DOMAIN: Final = phrase("open {line}, and find why {operator} gets values from {lowest:g} to {highest:g} there")
OPEN_LINE: Final = phrase("open {line}, and look at what {operator} gets there")
OPEN_UNWRITTEN: Final = phrase("open {line}, and find what {operator} leaves unwritten there")
CONFIRM: Final = phrase("{look}; confirm with: python bundle/repro.py")
REDUCE_WIDER: Final = phrase("{check}; then reduce in float32 there, or scale down before the sum")
PRINT_SENT: Final = phrase("print type and largest value that each rank sends at {line}")
OPEN_SUM: Final = phrase("open {line}: each rank sends {dtype} up to {largest:g}")
FIND_SAMPLE: Final = phrase("find the sample behind {name} on rank {rank}: it held {pattern} as it was fetched")
FIND_WRITER: Final = phrase(
    "find what writes into the batch of {ranks} after it was fetched, "
    "such as a pinned buffer that the loader uses again"
)


def first_look(cause: str, evidence: Evidence) -> str:
    """Where to look first; empty where the facts point at nothing that can be opened.

    Args:
        cause: its code.
        evidence: the incident.
    """
    look = LOOKS.get(cause)
    return look(evidence) if look else ""


def _values(evidence: Evidence) -> str:
    origin = _first(evidence, OriginKind.OPERATOR)
    if origin is None or not origin.source_line:
        return _sum(evidence)
    ends, name = origin_facts.span(origin), origin_facts.base_name(origin.operator)
    if ends is None or name not in {*origin_facts.DOMAINS, *origin_facts.EXPONENTIAL}:
        look = OPEN_LINE.format(line=origin.source_line, operator=origin.operator)
    else:
        look = OPEN_DOMAIN.format(line=origin.source_line, operator=origin.operator, lowest=ends[0], highest=ends[1])
    return _confirmed(look, evidence)


def _sum(evidence: Evidence) -> str:
    """Of a sum over ranks that overflows: what was sent, where that is known."""
    origin = _first(evidence, OriginKind.COMMUNICATION)
    if origin is None or not origin.source_line or not origin_facts.is_sum_overflow(origin):
        return ""
    check = PRINT_SENT.format(line=origin.source_line)
    if sizes := [each.absmax for each in origin.inputs if each.absmax is not None]:
        check = OPEN_SUM.format(line=origin.source_line, dtype=origin.inputs[0].dtype, largest=max(sizes))
    return REDUCE_WIDER.format(check=check)


def _function(evidence: Evidence) -> str:
    origin = _first(evidence, OriginKind.OPERATOR, OriginKind.UNSEEN)
    if origin is None or not origin.function_line:
        return ""
    return _confirmed(READ_FUNCTION.format(function=origin.function_line), evidence)


def _sample(evidence: Evidence) -> str:
    found = next(iter(evidence.audit_of("batch")), None)
    return "" if found is None else FIND_SAMPLE.format(name=found.name, rank=found.rank, pattern=found.pattern)


def _memory(evidence: Evidence) -> str:
    if evidence.batch_changed:
        return FIND_WRITER.format(ranks=name_ranks(sorted({spot.rank for spot in evidence.batch_changed})))
    origin = _first(evidence, OriginKind.NEVER_WRITTEN)
    if origin is None or not origin.source_line:
        return ""
    return OPEN_UNWRITTEN.format(line=origin.source_line, operator=origin.operator)


LOOKS: Final[dict[str, Callable[[Evidence], str]]] = {
    "data": _sample,
    "loss_or_mask": _values,
    "numerics": _values,
    "operator": _function,
    "uninitialised_or_race": _memory,
}
"""By cause; the others show in no place that can be opened."""


def _first(evidence: Evidence, *kinds: OriginKind) -> Origin | None:
    return next(origin_facts.of_kind(evidence, *kinds), None)


def _confirmed(look: str, evidence: Evidence) -> str:
    return CONFIRM.format(look=look) if has_call(evidence) else look
