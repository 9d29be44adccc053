"""What the parallel axes are called in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from megatron_nanguard.records.phrase import Phrase, phrase


class _AxisWords(NamedTuple):
    """One axis: the letters of Megatron's options, one index, several indices, all of them."""

    short: str
    one: Phrase
    several: Phrase
    all: str


_AXES = {
    "tp": _AxisWords(
        "TP",
        phrase("TP index {index}"),
        phrase("TP indices {indices}"),
        phrase("all tensor-parallel ranks"),
    ),
    "cp": _AxisWords(
        "CP",
        phrase("CP index {index}"),
        phrase("CP indices {indices}"),
        phrase("all context-parallel ranks"),
    ),
    "ep": _AxisWords(
        "EP",
        phrase("EP index {index}"),
        phrase("EP indices {indices}"),
        phrase("all expert-parallel ranks"),
    ),
    "dp": _AxisWords(
        "DP",
        phrase("data-parallel replica {index}"),
        phrase("data-parallel replicas {indices}"),
        phrase("all data-parallel replicas"),
    ),
    "pp": _AxisWords(
        "PP",
        phrase("pipeline stage {index}"),
        phrase("pipeline stages {indices}"),
        phrase("all pipeline stages"),
    ),
    "expert_tp": _AxisWords(
        "expert TP",
        phrase("expert TP index {index}"),
        phrase("expert TP indices {indices}"),
        phrase("all expert-tensor-parallel ranks"),
    ),
    "rank": _AxisWords(
        "rank",
        phrase("rank {index}"),
        phrase("ranks {indices}"),
        phrase("all ranks"),
    ),
    "expert_dp": _AxisWords(
        "expert DP",
        phrase("expert replica {index}"),
        phrase("expert replicas {indices}"),
        phrase("all expert replicas"),
    ),
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
    if len(indices) == 1:
        return names.one.format(index=indices[0])
    return names.several.format(indices=_in_runs(indices))


def _in_runs(indices: Sequence[int]) -> str:
    """Return ascending numbers with neighbours as a range: `0-2, 5`."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda item: item[1] - item[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
