"""Norms of this rank's own gradients, taken bucket by bucket just before the data-parallel reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.megatron_api import buffers
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup
from megatron_nanguard.sentinel.norms import norms_of


@dataclass(frozen=True, eq=False)
class BucketNorms:
    """Norms of one bucket.

    Attributes:
        params: the parameters the norms belong to, in buffer order.
        norms: fp32 [len(params)] on the device, or [1] for the bucket as a whole.
    """

    params: tuple[torch.nn.Parameter, ...]
    norms: Tensor


class BeforeReduction:
    """What one step's buckets held before they were reduced.

    Args:
        per_parameter: one norm per parameter; else one flat norm per bucket.
    """

    def __init__(self, per_parameter: bool) -> None:
        self.per_parameter = per_parameter
        self.forced_all_reduce = False
        """Whether the reduction overwrote every shard, so that no local value survives it."""
        self._buckets: dict[int, BucketNorms] = {}

    def clear(self) -> None:
        """Forget the last step."""
        self._buckets.clear()
        self.forced_all_reduce = False

    def look(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """Take the norms of a bucket group that is about to be reduced. May run on an autograd thread.

        Sync: none; a constant number of kernels per bucket.
        """
        self.forced_all_reduce |= force_all_reduce
        for bucket in buffers.buckets(group):
            if id(bucket) not in self._buckets:
                params = tuple(buffers.bucket_params(bucket))
                self._buckets[id(bucket)] = BucketNorms(params, self._norms(bucket, params))

    def taken(self) -> list[BucketNorms]:
        """The norms of every bucket of the step so far."""
        return list(self._buckets.values())

    @torch.no_grad()
    def _norms(self, bucket: Any, params: tuple[torch.nn.Parameter, ...]) -> Tensor:
        if not self.per_parameter and not any(buffers.has_separate_main_grad(p) for p in params):
            flat: Tensor = torch.linalg.vector_norm(bucket.grad_data, dtype=torch.float32)
            return flat.reshape(1)
        return norms_of([p.main_grad for p in params])  # type: ignore[attr-defined]
