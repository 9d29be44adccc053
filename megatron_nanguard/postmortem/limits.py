"""Keep the file of a rank small: in a large run ten thousand ranks write to one file system.

The limit is 4 KiB for a clean rank, 32 KiB for an infected one and 1 MiB for one that was bad itself. What is left out
is counted or noted; `incident.json` has the rank sets in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeVar

from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.phrase import phrase, phrases_of
from megatron_nanguard.records.postmortem import LocalGradients, Microbatch, Postmortem, ReducedState

CLEAN_BYTES: Final = 4 * 1024
INFECTED_BYTES: Final = 32 * 1024
BAD_BYTES: Final = 1024 * 1024

LIST_LENGTHS: Final = (1024, 256, 64, 16, 4, 0)
"""Lengths to which the lists of a post-mortem are cut, one after the other, until the file is small enough."""

KEPT_LAYERS: Final = 32
"""At least so many layers keep their norm, so that the report can still draw norms over the whole depth."""

KEPT_CHANGES: Final = 8
MIN_LENGTH_FOR_READINGS: Final = 256
"""Health readings are left out as soon as lists are cut to fewer entries than this."""

Gradients = TypeVar("Gradients", LocalGradients, ReducedState)


def limit_of(postmortem: Postmortem) -> int:
    """Return the largest size in bytes that the file of this rank may have."""
    flags = postmortem.flags
    if flags.local or flags.loss or flags.dead_step:
        return BAD_BYTES
    return INFECTED_BYTES if flags.reduced or flags.own_fault else CLEAN_BYTES


def cut_to_limit(postmortem: Postmortem) -> Postmortem:
    """Shorten a post-mortem step by step until its file is within the limit; unchanged if it is already."""
    limit = limit_of(postmortem)
    if limit > CLEAN_BYTES:
        postmortem = replace(postmortem, phrases=phrases_of(postmortem))
    for shorter in _shortened(postmortem):
        postmortem = shorter
        if len(to_json(shorter)) <= limit:
            break
    return postmortem


def _shortened(postmortem: Postmortem) -> Iterator[Postmortem]:
    """Yield the post-mortem unchanged, then shorter and shorter versions of it."""
    yield postmortem
    postmortem = replace(postmortem, phrases={}, health=without_zeros(postmortem.health))
    yield postmortem
    without_sets = _drop_rank_sets(postmortem)
    yield without_sets
    for length in LIST_LENGTHS:
        yield replace(
            without_sets,
            local=_cut_local(without_sets.local, length),
            reduced=_cut_parameters(without_sets.reduced, length),
            microbatches=_cut_microbatches(without_sets.microbatches, length),
            health=cut_health(without_sets.health, length),
            notes=_cut_notes(without_sets, length),
        )


def _drop_rank_sets(postmortem: Postmortem) -> Postmortem:
    """Remove the rank numbers of all sets and groups, which alone exceed the limit in a large run; keep the words."""
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
    return replace(
        _cut_parameters(local, length),
        by_layer=dict(list(local.by_layer.items())[: max(length, 64)]),
        norm_by_layer=_cut_layers(local.norm_by_layer, max(length, KEPT_LAYERS)),
    )


def _cut_layers(norms: dict[str, float | None], length: int) -> dict[str, float | None]:
    """Keep at most `length` norms of layers, evenly spaced, and in addition every norm that is not finite."""
    step = max(1, -(-len(norms) // length))
    return {
        layer: norm for index, (layer, norm) in enumerate(norms.items()) if index % step == 0 or not _is_finite(norm)
    }


def _cut_parameters(gradients: Gradients, length: int) -> Gradients:
    left_out = max(0, len(gradients.parameters) - length)
    return replace(gradients, parameters=gradients.parameters[:length], truncated=gradients.truncated + left_out)


def _cut_microbatches(microbatches: tuple[Microbatch, ...], length: int) -> tuple[Microbatch, ...]:
    """Keep at most `length` micro-batches, those with a non-finite loss first; return them in the order of the step."""
    kept = sorted(microbatches, key=lambda microbatch: _is_finite(microbatch.loss))[:length]
    return tuple(sorted(kept, key=lambda microbatch: microbatch.index))


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _cut_notes(postmortem: Postmortem, length: int) -> tuple[str, ...]:
    notes = postmortem.notes[: max(length, 8)]
    left_out = max(0, len(postmortem.microbatches) - length)
    more = phrase("{left_out} micro-batches left out to keep this file small", left_out=left_out)
    return (*notes, more) if left_out else notes


def without_zeros(health: DeviceHealth | None) -> DeviceHealth | None:
    """Leave out counters that are zero."""
    if health is None:
        return None
    readings = (
        replace(reading, counters={name: count for name, count in reading.counters.items() if count})
        for reading in health.readings
    )
    return replace(health, readings=tuple(readings))


def cut_health(health: DeviceHealth | None, length: int) -> DeviceHealth | None:
    """Cut the hardware record of one device: drop its readings and all but the worst changes.

    Args:
        health: hardware record of one device; its changes are sorted, worst first.
        length: length to which the lists of the post-mortem are cut; nothing is dropped while this is large.
    Returns:
        The shorter record; None for a device without changes and problems.
    """
    if health is None or length >= MIN_LENGTH_FOR_READINGS:
        return health
    if not (health.differences or health.problems):
        return None
    return replace(health, differences=health.differences[: max(length, KEPT_CHANGES)], readings=())
