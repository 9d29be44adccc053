"""Norms of this rank's gradients before the data-parallel reduction, and of what the optimizer consumes after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_nanguard.megatron_api.buffers import buckets, has_separate_main_grad
from megatron_nanguard.megatron_api.pieces import Piece, reduced_pieces
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup, Bucket, ModelChunk, ModelParameter

TAKES_DTYPE = any(argument.name == "dtype" for argument in torch.ops.aten._foreach_norm.Scalar._schema.arguments)
"""Whether this torch (2.4 and later) sums up in the type it is asked for; before, fp16 sums overflow in fp16."""


@dataclass(frozen=True, eq=False)
class BucketNorms:
    """Norms of one bucket.

    Attributes:
        params: the parameters the norms belong to, in buffer order.
        norms: fp32 [len(params)] on the device, or [1] for the bucket as a whole.
    """

    params: tuple[ModelParameter, ...]
    norms: Tensor


class BeforeReduction:
    """Norms of the buckets of one step, taken just before they are reduced.

    Args:
        per_parameter: one norm per parameter; else one flat norm per bucket.
    """

    def __init__(self, per_parameter: bool) -> None:
        self.per_parameter = per_parameter
        self.forced_all_reduce = False
        """Whether the step reduced whole buckets, so that no value from before the reduction survives."""
        self._buckets: dict[int, BucketNorms] = {}

    def clear(self) -> None:
        """Drop the norms of the last step."""
        self._buckets.clear()
        self.forced_all_reduce = False

    def look(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """Take the norms of a bucket group that is about to be reduced. May run on an autograd thread.

        Sync: none; a constant number of kernels per bucket.
        """
        self.forced_all_reduce |= force_all_reduce
        for bucket in buckets(group):
            if id(bucket) not in self._buckets:
                params = tuple(bucket.params_list)
                self._buckets[id(bucket)] = BucketNorms(params, self._norms(bucket, params))

    def taken(self) -> list[BucketNorms]:
        """Return the norms of every bucket of the step so far."""
        return list(self._buckets.values())

    @torch.no_grad()
    def _norms(self, bucket: Bucket, params: tuple[ModelParameter, ...]) -> Tensor:
        if not self.per_parameter and not any(has_separate_main_grad(p) for p in params):
            flat: Tensor = torch.linalg.vector_norm(bucket.grad_data, dtype=torch.float32)
            return flat.reshape(1)
        return norms_of([p.main_grad for p in params])


class AfterReduction:
    """The pieces that this rank's optimizer is about to consume, and their norms."""

    def __init__(self, chunks: Sequence[ModelChunk]) -> None:
        self._chunks = chunks
        self.pieces: list[Piece] = []
        self.norms: Tensor | None = None

    def look(self) -> None:
        """Take the norms.

        Sync: none; a constant number of kernels.
        """
        self.pieces = reduced_pieces(self._chunks)
        data = [piece.data for piece in self.pieces]
        self.norms = norms_of(data) if data else None


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """fp32 [len(tensors)] on their device; 0 for an empty one.

    Sync: none; a constant number of kernels, in older torch one per tensor.
    """
    if TAKES_DTYPE:
        return torch.stack(torch._foreach_norm(list(tensors), 2, torch.float32))
    return torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors])
