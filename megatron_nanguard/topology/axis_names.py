"""What the parallel axes are called in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from megatron_nanguard.records.phrase import phrase

ALL_OF = {
    "tp": phrase("all tensor-parallel ranks"),
    "cp": phrase("all context-parallel ranks"),
    "ep": phrase("all expert-parallel ranks"),
    "dp": phrase("all data-parallel replicas"),
    "pp": phrase("all pipeline stages"),
    "expert_tp": phrase("all expert-tensor-parallel ranks"),
    "expert_dp": phrase("all expert replicas"),
}
"""Words for every index of an axis."""
_ONE = {
    "tp": phrase("TP index {index}"),
    "cp": phrase("CP index {index}"),
    "ep": phrase("EP index {index}"),
    "dp": phrase("data-parallel replica {index}"),
    "pp": phrase("pipeline stage {index}"),
    "expert_tp": phrase("expert TP index {index}"),
    "expert_dp": phrase("expert replica {index}"),
    "rank": phrase("rank {index}"),
}
_SEVERAL = {
    "tp": phrase("TP indices {indices}"),
    "cp": phrase("CP indices {indices}"),
    "ep": phrase("EP indices {indices}"),
    "dp": phrase("data-parallel replicas {indices}"),
    "pp": phrase("pipeline stages {indices}"),
    "expert_tp": phrase("expert TP indices {indices}"),
    "expert_dp": phrase("expert replicas {indices}"),
    "rank": phrase("ranks {indices}"),
}


def index_of(axis: str, indices: Sequence[int]) -> str:
    """Return the words for some indices of the axis, such as `pipeline stages 0-2, 5`."""
    if len(indices) == 1:
        return _ONE[axis].format(index=indices[0])
    return _SEVERAL[axis].format(indices=_in_runs(indices))


def _in_runs(indices: Sequence[int]) -> str:
    """Return ascending numbers with neighbours as a range: `0-2, 5`."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda item: item[1] - item[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
