"""Overwrite values: which elements a pattern selects, and what it writes there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from megatron_nanguard.drill.spec import Drill, Pattern
from megatron_nanguard.errors import DrillError

VALUES: Final[Mapping[Pattern, float]] = {
    Pattern.NAN: math.nan,
    Pattern.POSITIVE_INF: math.inf,
    Pattern.NEGATIVE_INF: -math.inf,
    Pattern.HUGE: 1e30,
    Pattern.ROW: math.nan,
    Pattern.HEAD: math.nan,
}


@dataclass(frozen=True)
class ElementRange:
    """The elements [start, end) of a flattened tensor of this shape; a shard owns less than the whole."""

    shape: tuple[int, ...]
    start: int
    end: int

    @classmethod
    def whole(cls, tensor: Tensor) -> ElementRange:
        """Return the range of all elements of a tensor."""
        return cls(tuple(tensor.shape), 0, tensor.numel())

    @classmethod
    def from_start(cls, shape: Sequence[int], start: int, numel: int) -> ElementRange:
        """Return `numel` elements from `start` on; a negative start (unknown place in a sharding) counts as 0."""
        return cls(tuple(shape), max(start, 0), max(start, 0) + numel)


def poison(values: Tensor, part: ElementRange, drill: Drill, previous: Tensor | None, head_width: int | None) -> None:
    """Overwrite values in place, on their device.

    Args:
        values: the elements of `part`, in the tensor's own shape where that is the whole.
        part: their range in the whole tensor.
        drill: pattern and index.
        previous: the values of the execution before, for pattern stale; None if there was none.
        head_width: elements of the last dim that belong to one head, for pattern head.
    Raises:
        DrillError: the pattern has nothing to overwrite here; says why.
    Sync: the indices travel to the device; only in the step of the drill.
    """
    with torch.no_grad():
        if drill.pattern is Pattern.STALE:
            values.copy_(_checked(previous, values))
            return
        chosen = positions(part, drill, head_width)
        if not chosen.numel():
            raise DrillError(why_none(drill, part))
        values[_unravel(chosen.to(values.device) - part.start, tuple(values.shape))] = VALUES[drill.pattern]


def positions(part: ElementRange, drill: Drill, head_width: int | None) -> Tensor:
    """Elements of the flattened tensor that the pattern means, as far as `part` holds them; ascending.

    Without an index it is the first element, row or head of which `part` holds anything.
    """
    width = part.shape[-1] if part.shape else 1
    if drill.pattern is Pattern.HEAD:
        assert head_width is not None, "a head drill is refused on a model without heads"
        if width == head_width and len(part.shape) > 1:
            width *= part.shape[-2]  # [..., heads, head_width], as inside the attention
        return _columns(part, width, _index(drill, part.start % width // head_width) * head_width, head_width)
    size = width if drill.pattern is Pattern.ROW else 1
    first = _index(drill, part.start // size) * size
    return torch.arange(max(first, part.start), max(first, part.start, min(first + size, part.end)))


def why_none(drill: Drill, part: ElementRange) -> str:
    """Return why `positions` found no element, for an error message."""
    if drill.index is None:
        return f"there are no elements in [{part.start}, {part.end}) of {part.shape}"
    whose = f"[{part.start}, {part.end}) of {part.shape}, the elements there are"
    return f"{drill.pattern.value} index {drill.index} is outside {whose}"


def _columns(part: ElementRange, width: int, first: int, count: int) -> Tensor:
    """Return the elements of `part` in `count` columns from `first` on, in rows of this width."""
    rows = torch.arange(part.start // width, -(-part.end // width))
    columns = torch.arange(min(first, width), min(first + count, width))
    chosen = (rows[:, None] * width + columns).flatten()
    return chosen[(chosen >= part.start) & (chosen < part.end)]


def _index(drill: Drill, default: int) -> int:
    return default if drill.index is None else drill.index


def _unravel(positions: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """One index tensor per dim, so that a tensor of any strides can be written through."""
    index: list[Tensor] = []
    for size in reversed(shape):
        index.insert(0, positions % size)
        positions = positions // size
    return tuple(index)


def _checked(previous: Tensor | None, values: Tensor) -> Tensor:
    if previous is None:
        raise DrillError("there was no execution before this one whose values could come back")
    if previous.shape != values.shape:
        before, now = tuple(previous.shape), tuple(values.shape)
        raise DrillError(f"the execution before had shape {before}, this one has {now}")
    return previous
