"""Where the fault began: the call that made the first bad value, and what was bad before the step already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import LISTED, Phrase, joined, phrase, rank_list
from megatron_nanguard.records.trace import OriginKind, TensorFacts, phase_words
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.formatting import count, more_note, number, pattern_words
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_ORIGINS: Final = 3
PLAIN_NUMBER: Final = "number"
"""The dtype that a record gives to an argument that is a Python number."""
CAME_IN: Final = phrase("came in")
WENT_OUT: Final = phrase("went out")
ARGUMENT: Final = (phrase("argument"), phrase("argument {name}"))
OUTPUT: Final = (phrase("output"), phrase("output {name}"))
"""How a tensor without a name is called: alone, and as one of several."""
SEVERAL: Final = phrase("Origin: {number} that do not depend on each other, earliest first")
CALLS: Final = (OriginKind.OPERATOR, OriginKind.SCALER, OriginKind.NEVER_WRITTEN)
"""Kinds of origins that are a call with inputs."""
SHOWN_FINDINGS: Final = 12
AUDIT_COLUMNS: Final = (phrase("what"), phrase("name"), phrase("seen"), phrase("rank"), phrase("note"))


def describe(opened: OpenedIncident) -> Block | None:
    """Show the first three origins; several origins are independent of each other."""
    found = opened.incident.origin
    if not found:
        return None
    title = SEVERAL.format(number=len(found)) if len(found) > 1 else phrase("Origin")
    rows: list[tuple[str, str]] = []
    for place, origin in enumerate(found[:SHOWN_ORIGINS], start=1):
        rows += _who(opened, origin, place if len(found) > 1 else None)
        rows += _what(origin)
        rows += _tensors(origin)
    return Block(title, rows=tuple(rows), notes=more_note(len(found) - SHOWN_ORIGINS, "more origin"))


def describe_audit(opened: OpenedIncident) -> Block | None:
    """Show what the audit found bad before the step began, for which no operator of the step is to blame."""
    findings = opened.incident.audit
    if not findings:
        return None
    more = len(findings) - SHOWN_FINDINGS
    return Block(
        phrase("Bad before the step began"),
        columns=AUDIT_COLUMNS,
        rows=tuple(
            (one.kind.replace("_", " "), one.name, one.pattern, str(one.rank), one.note)
            for one in findings[:SHOWN_FINDINGS]
        ),
        notes=(phrase("... and {more} more", more=more),) if more > 0 else (),
    )


def _who(opened: OpenedIncident, origin: Origin, place: int | None) -> Iterator[tuple[str, str]]:
    if len(origin.ranks) > 1:
        yield _numbered(phrase("ranks"), place), rank_list(origin.ranks)
    else:
        yield _numbered(phrase("rank"), place), f"{origin.rank}, {origin.coords}"
        row = opened.row(origin.rank)
        if row and row.has_file:
            yield phrase("device"), phrase("{device} on host {host}", device=row.device, host=row.host)
    if origin.microbatch is not None:
        yield phrase("micro-batch"), str(origin.microbatch)
    yield phrase("phase"), phase_words(origin.phase)
    if origin.module:
        yield phrase("module"), origin.module


def _numbered(label: Phrase, place: int | None) -> Phrase:
    return label if place is None else phrase("{label} ({place})", label=label, place=place)


def _what(origin: Origin) -> Iterator[tuple[str, str]]:
    if origin.kind is OriginKind.COMMUNICATION:
        yield phrase("communication"), origin.output
    yield phrase("operator"), f"{origin.operator} -> {pattern_words(origin.pattern)}"
    if origin.forward_operator and origin.forward_operator != origin.operator:
        yield phrase("in the backward of"), origin.forward_operator
    if origin.function_line:
        yield phrase("written at"), origin.function_line
    if origin.source_line and origin.source_line != origin.function_line:
        # A backward in C++ has no line of Python: the line is that of its forward.
        is_forward = origin.phase == "backward" and not origin.source_line.endswith(".backward")
        yield phrase("forward line") if is_forward else phrase("line"), origin.source_line


def _tensors(origin: Origin) -> Iterator[tuple[str, str]]:
    for tensor in origin.inputs:
        yield CAME_IN, _tensor(tensor, ARGUMENT)
    if origin.not_seen:
        yield CAME_IN, phrase("not looked at: {names}", names=", ".join(origin.not_seen))
    if not origin.inputs and origin.kind in (*CALLS, OriginKind.COMMUNICATION):
        yield CAME_IN, phrase("not recorded")
    if origin.facts:
        yield WENT_OUT, _tensor(origin.facts, OUTPUT)
    elif origin.output and origin.kind is not OriginKind.COMMUNICATION:
        yield WENT_OUT, _name(origin.output, OUTPUT)
    if any(origin.positions):
        yield phrase("at"), " ".join(map(str, origin.positions)).replace(",)", ")")
    if origin.times > 1:
        yield phrase("times"), str(origin.times)


def _name(name: str, what: tuple[Phrase, Phrase]) -> str:
    """Return the name of a tensor; for a tensor without a name, its kind and number: "output 0"."""
    alone, numbered = what
    if name and not name.isdecimal():
        return name
    return numbered.format(name=name) if name else alone


def _tensor(tensor: TensorFacts, what: tuple[Phrase, Phrase]) -> str:
    """Write one tensor in one line: "grad of k, (4, 8) bfloat16: NaN, 3 NaN, 0 Inf, finite from -2 to 1.5, head 2"."""
    name = _name(tensor.name, what)
    if tensor.dtype == PLAIN_NUMBER:
        return phrase("{name}, a plain number: {pattern}", name=name, pattern=pattern_words(tensor.pattern))
    kind = joined(LISTED, (name, f"{tensor.shape} {tensor.dtype}")) if tensor.dtype else name
    return phrase("{tensor}: {facts}", tensor=kind, facts=joined(LISTED, _facts(tensor)))


def _facts(tensor: TensorFacts) -> Iterator[str]:
    span = _span(tensor)
    if tensor.nan_count or tensor.inf_count:
        yield f"{count(tensor.nan_count)} NaN, {count(tensor.inf_count)} Inf"
        if span:
            yield phrase("finite {span}", span=span)
    else:
        pattern = pattern_words(tensor.pattern)
        yield phrase("{pattern} {span}", pattern=pattern, span=span) if span else pattern
    if tensor.layout:
        yield tensor.layout


def _span(tensor: TensorFacts) -> str:
    """Write the range of the finite values: "from -2.8 to 0.5"."""
    if tensor.lowest is not None and tensor.highest is not None:
        return phrase("from {lowest} to {highest}", lowest=number(tensor.lowest), highest=number(tensor.highest))
    return "" if tensor.absmax is None else phrase("up to {size} in magnitude", size=number(tensor.absmax))
