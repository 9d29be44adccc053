"""Where it began: the end of the walk back from the bad gradients."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.trace import TensorFacts
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.wording import count, counted, number, rank_list

SHOWN_ORIGINS = 3
SHOWN_PATH = 4


def describe(incident: Incident) -> Block | None:
    """The first three origins; several are independent of each other."""
    if not incident.origin:
        return None
    several = len(incident.origin) > 1
    title = f"Origin: {len(incident.origin)} that do not depend on each other, earliest first" if several else "Origin"
    rows: list[tuple[str, str]] = []
    for place, origin in enumerate(incident.origin[:SHOWN_ORIGINS], start=1):
        rows.append((f"where ({place})" if several else "where", _where(origin)))
        rows += _rows(origin)
    more = len(incident.origin) - SHOWN_ORIGINS
    return Block(title, rows=tuple(rows), notes=(f"... and {counted(more, 'more origin')}",) if more > 0 else ())


def _where(origin: Origin) -> str:
    who = f"rank {origin.rank} ({origin.coords})"
    if len(origin.ranks) > 1:
        who = f"ranks {rank_list(origin.ranks)}"
    when = origin.phase if origin.microbatch is None else f"{origin.phase} of micro-batch {origin.microbatch}"
    return ", ".join(filter(None, (who, when, origin.module)))


def _rows(origin: Origin) -> Iterator[tuple[str, str]]:
    yield "operator", f"{origin.operator} -> {origin.pattern}"
    if origin.forward_operator and origin.forward_operator != origin.operator:
        yield "made by", f"{origin.forward_operator} of the forward"
    if origin.facts:
        yield "output", _tensor(origin.facts)
    elif origin.output:
        yield "output", origin.output
    if origin.positions:
        yield "positions", " ".join(map(str, origin.positions)).replace(",)", ")")
    for tensor in origin.inputs:
        yield "input", _tensor(tensor)
    if origin.source_line:
        yield "line", origin.source_line
    if origin.times > 1:
        yield "times", str(origin.times)
    if origin.path:
        shown = " > ".join(origin.path[:SHOWN_PATH])
        more = len(origin.path) - SHOWN_PATH
        yield "then", f"{shown} > ... {more} more" if more > 0 else shown


def _tensor(tensor: TensorFacts) -> str:
    """A tensor in a line: "grad of k, (4, 8) bfloat16: nan, 3 NaN, 0 Inf, largest 1.5, head 2"."""
    facts: list[str] = [tensor.pattern]
    if tensor.nan_count or tensor.inf_count:
        facts.append(f"{count(tensor.nan_count)} NaN, {count(tensor.inf_count)} Inf")
    if tensor.absmax is not None:
        facts.append(f"largest finite {number(tensor.absmax)}")
    if tensor.layout:
        facts.append(tensor.layout)
    kind = f"{tensor.name}, {tensor.shape} {tensor.dtype}" if tensor.dtype else tensor.name
    return f"{kind}: {', '.join(facts)}"
