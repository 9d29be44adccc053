"""Find the micro-batch in which gradients first turned bad, by a check after each backward step of a replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megatron_nanguard.megatron_api.bucket_state import is_dispatched
from megatron_nanguard.megatron_api.buffers import bucket_groups, buckets, local_gradient
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.sentinel.gradient_norms import BucketNorms


class FirstBad:
    """Check `main_grad` after each backward step of a replay.

    Args:
        chunks: model chunks of this rank.
    """

    def __init__(self, chunks: Sequence[ModelChunk]) -> None:
        self._chunks = chunks
        self._looks: list[tuple[int, Tensor]] = []
        self._last = 0

    @torch.no_grad()
    def look(self, microbatch: int | None, chunk: int) -> None:
        """Keep the smallest and largest element of every gradient of a chunk after its backward step.

        Gradients whose reduction is in flight are left out: they are no longer this rank's own, and they change.

        Sync: none; one kernel per parameter.
        """
        if microbatch is None:
            return
        self._last = max(self._last, microbatch)
        module = self._chunks[chunk]
        in_flight = _in_flight(module)
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for param in module.parameters():
            gradient = None if id(param) in in_flight else local_gradient(param)
            if gradient is not None and gradient.data.numel():
                by_dtype.setdefault(gradient.data.dtype, []).append(gradient.data)
        for dtype, gradients in by_dtype.items():
            ranges = torch.empty(len(gradients), 2, dtype=dtype, device=gradients[0].device)
            for slot, data in zip(ranges, gradients, strict=True):
                torch.aminmax(data, out=(slot[0], slot[1]))
            self._looks.append((microbatch, ranges))

    def read(self, before_reduction: Sequence[BucketNorms] = ()) -> int | None:
        """Return the first micro-batch after which a gradient was bad; None if there is none.

        Args:
            before_reduction: bucket norms of the same pass. A gradient that is bad there and was still finite at the
                last check turned bad in the last micro-batch, when its reduction was in flight already.
        Sync: host reads; only on an incident.
        """
        bad = [microbatch for microbatch, ranges in self._looks if not bool(torch.isfinite(ranges).all())]
        if not all(bool(torch.isfinite(bucket.norms).all()) for bucket in before_reduction):
            bad.append(self._last)
        return min(bad, default=None)


def _in_flight(chunk: ModelChunk) -> set[int]:
    groups = [group for group in bucket_groups(chunk) if is_dispatched(group)]
    return {id(param) for group in groups for bucket in buckets(group) for param in bucket.params_list}
