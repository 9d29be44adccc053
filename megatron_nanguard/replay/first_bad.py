"""Find the micro-batch in which gradients first turned bad, by a check after each backward step of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.megatron_api.bucket_state import is_dispatched
from megatron_nanguard.megatron_api.buffers import bucket_groups, bucket_params, buckets, local_gradient
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.sentinel.gradient_norms import BucketNorms


@dataclass(frozen=True, eq=False)
class _Look:
    microbatch: int
    params: list[Parameter]
    ranges: Tensor


class FirstBad:
    """Check `main_grad` after each backward step of a replay.

    Args:
        chunks: model chunks of this rank.
    """

    def __init__(self, chunks: Sequence[ModelChunk]) -> None:
        self._chunks = chunks
        self._looks: list[_Look] = []
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
        by_dtype: dict[torch.dtype, list[tuple[Parameter, Tensor]]] = {}
        for param in module.parameters():
            gradient = None if id(param) in in_flight else local_gradient(param)
            if gradient is not None and gradient.data.numel():
                by_dtype.setdefault(gradient.data.dtype, []).append((param, gradient.data))
        for dtype, pairs in by_dtype.items():
            ranges = torch.empty(len(pairs), 2, dtype=dtype, device=pairs[0][1].device)
            for slot, (_, data) in zip(ranges, pairs, strict=True):
                torch.aminmax(data, out=(slot[0], slot[1]))
            self._looks.append(_Look(microbatch, [param for param, _ in pairs], ranges))

    def read(self, before_reduction: Sequence[BucketNorms] = ()) -> dict[int, list[Parameter]]:
        """Return the parameters whose gradients turned bad, by micro-batch, in the order in which it happened.

        Args:
            before_reduction: bucket norms of the same pass. A gradient that is bad there and was still finite at the
                last check turned bad in the last micro-batch, when its reduction was in flight already.
        Sync: host reads; only on an incident.
        """
        bad: dict[int, list[Parameter]] = {}
        seen: set[int] = set()
        for look in self._looks:
            finite = torch.isfinite(look.ranges).all(dim=1).tolist()
            _add(bad, seen, look.microbatch, [p for p, fine in zip(look.params, finite, strict=True) if not fine])
        for bucket in before_reduction:
            finite = torch.isfinite(bucket.norms).tolist()
            if len(finite) == len(bucket.params):
                _add(bad, seen, self._last, [p for p, fine in zip(bucket.params, finite, strict=True) if not fine])
            elif not all(finite) and not any(id(param) in seen for param in bucket.params):
                _add(bad, seen, self._last, list(bucket.params))
        return bad


def _add(bad: dict[int, list[Parameter]], seen: set[int], microbatch: int, params: Sequence[Parameter]) -> None:
    new = [param for param in params if id(param) not in seen]
    if new:
        bad.setdefault(microbatch, []).extend(new)
        seen.update(id(param) for param in new)


def _in_flight(chunk: ModelChunk) -> set[int]:
    groups = [group for group in bucket_groups(chunk) if is_dispatched(group)]
    return {id(param) for group in groups for bucket in buckets(group) for param in bucket_params(bucket)}
