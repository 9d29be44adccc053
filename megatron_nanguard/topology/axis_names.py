"""What the parallel axes are called in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class _Names(NamedTuple):
    """One axis: the letters of Megatron's options, one index, several indices, all of them."""

    short: str
    one: str
    several: str
    all: str


_AXES = {
    "tp": _Names("TP", "TP index", "TP indices", "all tensor-parallel ranks"),
    "cp": _Names("CP", "CP index", "CP indices", "all context-parallel ranks"),
    "ep": _Names("EP", "EP index", "EP indices", "all expert-parallel ranks"),
    "dp": _Names("DP", "data-parallel replica", "data-parallel replicas", "all data-parallel replicas"),
    "pp": _Names("PP", "pipeline stage", "pipeline stages", "all pipeline stages"),
    "expert_tp": _Names("expert TP", "expert TP index", "expert TP indices", "all expert-tensor-parallel ranks"),
    "rank": _Names("rank", "rank", "ranks", "all ranks"),
    "expert_dp": _Names("expert DP", "expert replica", "expert replicas", "all expert replicas"),
}


def short_name(axis: str) -> str:
    """Return the axis as Megatron's options abbreviate it."""
    return _AXES[axis].short


def all_of(axis: str) -> str:
    """Return the words for every index of the axis."""
    return _AXES[axis].all


def index_of(axis: str, indices: Sequence[int]) -> str:
    """Return the words for some indices of the axis, such as `pipeline stages 0-2, 5`."""
    names = _AXES[axis]
    return f"{names.one if len(indices) == 1 else names.several} {_in_runs(indices)}"


def _in_runs(indices: Sequence[int]) -> str:
    """Return ascending numbers with neighbours as a range: `0-2, 5`."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda item: item[1] - item[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
