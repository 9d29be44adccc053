"""The accused call on its own: what it did when it was run again, here, elsewhere and in higher precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.diagnosis.origin_facts import tried
from megatron_nanguard.diagnosis.repetition import conclusion
from megatron_nanguard.records.arbitration import BAD, NOT_TRIED, Arbitration
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import LISTED, joined, phrase
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_CALLS: Final = 3
REPEATED: Final = phrase("NaN or Inf in {bad} of {repeats} runs")
PEER: Final = phrase("{outcome} on rank {rank} ({device}{alike})")
ALIKE: Final = phrase(", the same model on the same host")
NOT_FINITE: Final = phrase("NaN or Inf")
FINITE: Final = phrase("finite")
OUT_OF_RANGE: Final = phrase("{outcome}, beyond the range of the type it is stored in")


def describe(opened: OpenedIncident) -> Block | None:
    """One run after the other and what they prove together, for the first three calls."""
    calls = opened.incident.arbitrations
    if not calls:
        return None
    more = len(calls) - SHOWN_CALLS
    return Block(
        phrase("The accused call, run again on its own"),
        rows=tuple(row for call in calls[:SHOWN_CALLS] for row in _rows(call, opened.incident.origin)),
        notes=(phrase("... and {more} more calls", more=more),) if more > 0 else (),
    )


def _rows(call: Arbitration, origins: Sequence[Origin]) -> Iterator[tuple[str, str]]:
    yield phrase("call"), joined(LISTED, (tried(call), call.module))
    if call.repeats:
        yield phrase("same device"), REPEATED.format(bad=call.repeats_bad, repeats=call.repeats)
    if call.peer != NOT_TRIED:
        yield phrase("another device"), _peer(call)
    by = call.reference if call.reference not in ("", "aten") else ""
    if call.reference_fp32 != NOT_TRIED:
        yield phrase("float32 on CPU"), _by(_outcome(call.reference_fp32), by)
    if call.reference_fp64 != NOT_TRIED:
        outcome = _by(_outcome(call.reference_fp64), by)
        yield phrase("float64 on CPU"), OUT_OF_RANGE.format(outcome=outcome) if call.out_of_range else outcome
    if call.note:
        yield phrase("note"), call.note
    yield phrase("together"), conclusion(call, origins)


def _peer(call: Arbitration) -> str:
    outcome = _outcome(call.peer)
    if call.peer_rank is None:
        return outcome
    alike = ALIKE if call.peer_is_alike else ""
    return PEER.format(outcome=outcome, rank=call.peer_rank, device=call.peer_device, alike=alike)


def _outcome(outcome: str) -> str:
    return NOT_FINITE if outcome == BAD else FINITE if outcome == FINITE else outcome


def _by(outcome: str, reference: str) -> str:
    return phrase("{outcome} ({reference})", outcome=outcome, reference=reference) if reference else outcome
