"""How large the file of one rank may be: ten thousand ranks share one file system.

A clean rank writes at most 4 KiB, an infected one 32 KiB, one that was bad itself 1 MiB. What is left out is counted
or noted; `incident.json` keeps the rank sets in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from megatron_nanguard.records.health import DeviceHealth
from megatron_nanguard.records.json.conversion import to_json
from megatron_nanguard.records.phrase import phrase, phrases_of
from megatron_nanguard.records.postmortem import LocalGradients, Microbatch, Postmortem, ReducedState

CLEAN_BYTES = 4 * 1024
INFECTED_BYTES = 32 * 1024
BAD_BYTES = 1024 * 1024

LIST_LENGTHS = (1024, 256, 64, 16, 4, 0)
"""Lengths that the lists of a post-mortem are cut to, one after the other, until the file fits."""

KEPT_LAYERS = 32
"""Layers whose norms are kept however short the lists are: the picture of the depth stays whole."""


def limit_of(postmortem: Postmortem) -> int:
    """Bytes that the file of this rank may have."""
    flags = postmortem.flags
    if flags.local or flags.loss or flags.dead_step:
        return BAD_BYTES
    return INFECTED_BYTES if flags.reduced or flags.own_fault else CLEAN_BYTES


def fit(postmortem: Postmortem) -> Postmortem:
    """Cut the lists of a post-mortem until its file is as small as it must be."""
    limit = limit_of(postmortem)
    if limit > CLEAN_BYTES:
        postmortem = replace(postmortem, phrases=phrases_of(postmortem))
    for shorter in _ever_shorter(postmortem):
        postmortem = shorter
        if len(to_json(shorter)) <= limit:
            break
    return postmortem


def _ever_shorter(postmortem: Postmortem) -> Iterator[Postmortem]:
    yield postmortem
    postmortem = replace(postmortem, phrases={}, health=without_zeros(postmortem.health))
    yield postmortem
    without_sets = _drop_rank_sets(postmortem)
    yield without_sets
    for length in LIST_LENGTHS:
        yield replace(
            without_sets,
            local=_cut_local(without_sets.local, length),
            reduced=_cut_reduced(without_sets.reduced, length),
            microbatches=_cut_microbatches(without_sets.microbatches, length),
            health=cut_health(without_sets.health, length),
            notes=_cut_notes(without_sets, length),
        )


def _drop_rank_sets(postmortem: Postmortem) -> Postmortem:
    """In a large world the sets alone are longer than the file may be; the words of the groups stay."""
    if postmortem.ranks is None:
        return postmortem
    return replace(
        postmortem,
        ranks=None,
        groups=tuple(replace(group, ranks=()) for group in postmortem.groups),
        infected_groups=tuple(replace(group, ranks=()) for group in postmortem.infected_groups),
        notes=(phrase("rank sets left out to keep this file small: see incident.json"), *postmortem.notes),
    )


def _cut_local(local: LocalGradients, length: int) -> LocalGradients:
    left_out = max(0, len(local.parameters) - length)
    return replace(
        local,
        parameters=local.parameters[:length],
        by_layer=dict(list(local.by_layer.items())[: max(length, 64)]),
        truncated=local.truncated + left_out,
        norm_by_layer=_cut_layers(local.norm_by_layer, max(length, KEPT_LAYERS)),
    )


def _cut_layers(norms: dict[str, float | None], length: int) -> dict[str, float | None]:
    """Keep every n-th layer, and each one whose norm is not finite."""
    step = max(1, -(-len(norms) // length))
    return {
        layer: norm for index, (layer, norm) in enumerate(norms.items()) if index % step == 0 or not _is_finite(norm)
    }


def _cut_reduced(reduced: ReducedState, length: int) -> ReducedState:
    left_out = max(0, len(reduced.parameters) - length)
    return replace(reduced, parameters=reduced.parameters[:length], truncated=reduced.truncated + left_out)


def _cut_microbatches(microbatches: tuple[Microbatch, ...], length: int) -> tuple[Microbatch, ...]:
    """Keep those with a non-finite loss first, in the order of the step."""
    by_interest = sorted(microbatches, key=lambda microbatch: _is_finite(microbatch.loss))[:length]
    return tuple(sorted(by_interest, key=lambda microbatch: microbatch.index))


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _cut_notes(postmortem: Postmortem, length: int) -> tuple[str, ...]:
    notes = postmortem.notes[: max(length, 8)]
    left_out = max(0, len(postmortem.microbatches) - length)
    return (
        (*notes, phrase("{left_out} micro-batches left out to keep this file small", left_out=left_out))
        if left_out
        else notes
    )


KEPT_CHANGES: Final = 8
READINGS_UP_TO: Final = 256
"""Lists shorter than this leave no room for readings."""


def without_zeros(health: DeviceHealth | None) -> DeviceHealth | None:
    """Leave out the errors that never happened."""
    if health is None:
        return None
    readings = (
        replace(reading, counters={name: count for name, count in reading.counters.items() if count})
        for reading in health.readings
    )
    return replace(health, readings=tuple(readings))


def cut_health(health: DeviceHealth | None, length: int) -> DeviceHealth | None:
    """Keep as many changes as there is room for, worst first; the readings, and silence, only while lists are long."""
    if health is None or length >= READINGS_UP_TO:
        return health
    if not (health.differences or health.problems):
        return None
    return replace(health, differences=health.differences[: max(length, KEPT_CHANGES)], readings=())
