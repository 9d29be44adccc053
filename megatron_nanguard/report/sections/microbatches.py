"""The micro-batches of the step: their losses, and what is unusual about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.records.incident import BatchSpot, Incident, MicrobatchLosses
from megatron_nanguard.records.phrase import LISTED, TOGETHER, joined, name_ranks, phrase
from megatron_nanguard.records.trace import phase_words
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.formatting import number
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_MICROBATCHES: Final = 8
COLUMNS: Final = (phrase("micro-batch"), phrase("lowest"), phrase("highest"), phrase("what is unusual"))


def describe(opened: OpenedIncident) -> Block | None:
    """Show all micro-batches where they are few, else those with something unusual and then the first ones."""
    incident = opened.incident
    seen = {losses.index: losses for losses in incident.losses}
    words = {index: joined(LISTED, _words(incident, index, seen.get(index))) for index in _indices(incident)}
    if not words:
        return None
    chosen = sorted(words, key=lambda index: (not words[index], index))[:SHOWN_MICROBATCHES]
    left_out = len(words) - len(chosen)
    return Block(
        phrase("Micro-batches and their losses"),
        columns=COLUMNS,
        rows=tuple(_row(index, seen.get(index), words[index]) for index in sorted(chosen)),
        notes=(phrase("... and {number} more micro-batches", number=left_out),) if left_out else (),
    )


def _indices(incident: Incident) -> set[int]:
    """Collect the indices of all micro-batches that the incident mentions."""
    spots = (*incident.changed_after_fetch, *incident.zero_tokens)
    origins = {origin.microbatch for origin in incident.origin if origin.microbatch is not None}
    return {losses.index for losses in incident.losses} | {spot.microbatch for spot in spots} | origins


def _words(incident: Incident, index: int, losses: MicrobatchLosses | None) -> Iterator[str]:
    begun = dict.fromkeys(origin.phase for origin in incident.origin if origin.microbatch == index)
    if begun:
        yield phrase("it began here, in {phases}", phases=joined(TOGETHER, map(phase_words, begun)))
    if losses and losses.nonfinite_ranks:
        yield phrase("loss not finite on {ranks}", ranks=name_ranks(losses.nonfinite_ranks))
    if ranks := _ranks(incident.zero_tokens, index):
        yield phrase("no token counted by the loss on {ranks}", ranks=name_ranks(ranks))
    if ranks := _ranks(incident.changed_after_fetch, index):
        yield phrase("data changed after it was fetched on {ranks}", ranks=name_ranks(ranks))


def _ranks(spots: Sequence[BatchSpot], index: int) -> list[int]:
    return sorted(spot.rank for spot in spots if spot.microbatch == index)


def _row(index: int, losses: MicrobatchLosses | None, words: str) -> tuple[str, ...]:
    lowest, highest = (losses.lowest, losses.highest) if losses else (None, None)
    return str(index), number(lowest), number(highest), words
