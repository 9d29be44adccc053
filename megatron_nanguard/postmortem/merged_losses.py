"""The losses of a step, over all ranks that compute one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from megatron_nanguard.records.incident import MicrobatchLosses
from megatron_nanguard.records.postmortem import Microbatch


@dataclass
class _Seen:
    num_ranks: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    nonfinite_ranks: list[int] = field(default_factory=list)


class LossMerger:
    """Collects losses rank by rank; ranks that compute no loss add nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def add(self, rank: int, microbatches: Iterable[Microbatch]) -> None:
        """Take the micro-batches of one rank."""
        for microbatch in microbatches:
            if microbatch.loss is None:
                continue
            seen = self._seen.setdefault(microbatch.index, _Seen())
            seen.num_ranks += 1
            if math.isfinite(microbatch.loss):
                seen.lowest = min(seen.lowest, microbatch.loss)
                seen.highest = max(seen.highest, microbatch.loss)
            else:
                seen.nonfinite_ranks.append(rank)

    def merged(self) -> tuple[MicrobatchLosses, ...]:
        """The losses by micro-batch, in the order of the step."""
        return tuple(_merge(index, seen) for index, seen in sorted(self._seen.items()))


def _merge(index: int, seen: _Seen) -> MicrobatchLosses:
    some_finite = seen.num_ranks > len(seen.nonfinite_ranks)
    return MicrobatchLosses(
        index=index,
        num_ranks=seen.num_ranks,
        lowest=seen.lowest if some_finite else None,
        highest=seen.highest if some_finite else None,
        nonfinite_ranks=tuple(sorted(seen.nonfinite_ranks)),
    )
