"""Count the non-finite elements per parameter, where an alarm asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatron_nanguard.megatron_api.pieces import Piece, Segment
from megatron_nanguard.parameters.parameter_map import ParameterMap, index_in
from megatron_nanguard.records.postmortem import BadParameter
from megatron_nanguard.records.run.parameters import ParameterEntry
from megatron_nanguard.records.trace import pattern_of


@dataclass
class _Tally:
    """What was seen of one parameter, over all pieces it lies in."""

    entry: ParameterEntry
    norms: list[float] = field(default_factory=list)
    counted: int = 0
    nan_count: int = 0
    inf_count: int = 0
    first_index: tuple[int, ...] | None = None


def count_nonfinite(parameters: ParameterMap, pieces: Sequence[Piece]) -> list[BadParameter]:
    """Return the parameters with a non-finite element, or whose norm is not finite, in the order of the pieces.

    Args:
        parameters: map of the chunks the pieces come from.
        pieces: what to examine, such as `reduced_pieces` or `surviving_local_pieces`.
    Returns:
        One record per bad parameter. Counts and norm are about the elements that the pieces hold of it.
    Sync: one host read for all norms, three more per bad run of elements.
    """
    runs = [(entry, segment, piece) for piece in pieces for entry, segment in parameters.segments(piece)]
    if not runs:
        return []
    norms = torch.stack([_norm(_elements(segment, piece)) for _, segment, piece in runs]).tolist()
    tallies: dict[int, _Tally] = {}
    for (entry, segment, piece), norm in zip(runs, norms, strict=True):
        tally = tallies.setdefault(entry.id, _Tally(entry))
        tally.norms.append(norm)
        tally.counted += segment.piece_end - segment.piece_start
        if not math.isfinite(norm):
            _count(tally, segment, _elements(segment, piece))
    return [_record(tally) for tally in tallies.values() if not all(map(math.isfinite, tally.norms))]


def _elements(segment: Segment, piece: Piece) -> Tensor:
    return piece.data[segment.piece_start : segment.piece_end]


def _norm(elements: Tensor) -> Tensor:
    dtype = torch.promote_types(elements.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(elements, dtype=dtype)
    return norm


def _count(tally: _Tally, segment: Segment, elements: Tensor) -> None:
    tally.nan_count += int(elements.isnan().sum())
    tally.inf_count += int(elements.isinf().sum())
    if tally.nan_count + tally.inf_count and tally.first_index is None:
        first = int(elements.isfinite().logical_not_().to(torch.uint8).argmax())
        tally.first_index = index_in(tally.entry, segment.param_start, first)


def _record(tally: _Tally) -> BadParameter:
    return BadParameter(
        name=tally.entry.name,
        local_name=tally.entry.local_name,
        shape=tally.entry.shape,
        norm=math.hypot(*tally.norms) if tally.nan_count == 0 else math.nan,
        pattern=pattern_of(tally.nan_count, tally.inf_count),
        nan_count=tally.nan_count,
        inf_count=tally.inf_count,
        counted_elements=tally.counted,
        first_index=tally.first_index,
    )
