"""Gradient buffers of a model chunk: buckets before the reduction, and what stands where after it.

buffer 0   [ bucket 0       | bucket 1       ]
rank 0     [ own   | local  | own   | local  ]    distributed optimizer on two ranks: own is reduced,
rank 1     [ local | own    | local | own    ]    local still holds this rank's values from before
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module, Parameter

from megatron_nanguard.megatron_api.further_sums import summed_further
from megatron_nanguard.megatron_api.parameter_gradients import local_gradient

NO_BUFFER = -1
"""Buffer number of a piece that is one parameter's own gradient, in a chunk without gradient buffers."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A contiguous run of gradient elements.

    Attributes:
        chunk: number of the model chunk on this rank.
        buffer: number of the gradient buffer in the chunk, or NO_BUFFER.
        bucket: number of the bucket in the buffer, -1 for a run over all of them; without a buffer the number of the
            parameter in the chunk.
        start: first element inside the buffer; without a buffer inside the flattened parameter (-1 where a sharding
            does not tell).
        data: [numel], flat view on the training device.
    """

    chunk: int
    buffer: int
    bucket: int
    start: int
    data: Tensor


class Segment(NamedTuple):
    """The part of a piece that belongs to one parameter.

    Attributes:
        param: the model parameter.
        piece_start: its first element inside the piece.
        piece_end: one past its last element inside the piece.
        param_start: the same first element inside the flattened parameter, or -1 where unknown.
    """

    param: Parameter
    piece_start: int
    piece_end: int
    param_start: int


def grad_buffers(chunk: Module) -> list[Any]:
    """Return the chunk's gradient buffers, those of experts last; none for FSDP and plain modules.

    Source: megatron/core/distributed/distributed_data_parallel.py: lists that hide `nn.Module.buffers`
    """
    attributes = vars(chunk)
    return [*attributes.get("buffers", ()), *attributes.get("expert_parallel_buffers", ())]


def bucket_groups(chunk: Module) -> list[Any]:
    """Return what communicates together: bucket groups, or in 0.8 the buckets themselves."""
    attributes = vars(chunk)
    if "bucket_groups" not in attributes:
        return [bucket for buffer in grad_buffers(chunk) for bucket in buffer.buckets]
    return [*attributes["bucket_groups"], *attributes["expert_parallel_bucket_groups"]]


def buckets(group: Any) -> list[Any]:
    """Return the buckets of a bucket group; in 0.8, where a bucket communicates for itself, that bucket."""
    return list(group.buckets) if hasattr(group, "buckets") else [group]


def bucket_params(bucket: Any) -> list[Parameter]:
    """Return a bucket's parameters in the order of the buffer."""
    return list(bucket.params_list)


def has_separate_main_grad(param: Parameter) -> bool:
    """Say whether `main_grad` lies outside the buffer, which then holds a copy in lower precision (0.17 and later)."""
    return getattr(param, "main_grad_copy_in_grad_buffer", None) is not None


def uses_distributed_optimizer(buffer: Any) -> bool:
    """Say whether each rank reduces and owns only its shard of every bucket."""
    return bool(buffer.ddp_config.use_distributed_optimizer)


def owned_range(buffer: Any, bucket: Any) -> tuple[int, int]:
    """Return the buffer elements of a bucket that this rank's optimizer consumes.

    Source: megatron/core/distributed/param_and_grad_buffer.py, `shard_buffer`: equal shards over the buffer's
        data-parallel group (that of one optimizer instance, where there are several)
    """
    numel = bucket.grad_data.numel()
    if not uses_distributed_optimizer(buffer):
        return bucket.offset, bucket.offset + numel
    group = buffer.data_parallel_group
    shard = numel // group.size()
    start = bucket.offset + group.rank() * shard
    return start, start + shard


def reduced_pieces(chunks: Sequence[Module]) -> list[Piece]:
    """Return what the optimizer will consume on this rank once the gradients are reduced.

    Returns:
        Plain DDP: each buffer. Distributed optimizer: this rank's shard of each bucket. A main grad outside the buffer
        stands for its place in it. Without buffers: each parameter's gradient, as far as it is set.
    """
    pieces: list[Piece] = []
    for chunk_number, chunk in enumerate(chunks):
        buffers = grad_buffers(chunk)
        for buffer_number, buffer in enumerate(buffers):
            pieces += _consumed_pieces(chunk_number, buffer_number, buffer)
        if not buffers:
            pieces += _parameter_pieces(chunk_number, chunk)
    return pieces


def surviving_local_pieces(chunks: Sequence[Module]) -> list[Piece]:
    """Return where this rank's own values from before the reduction still stand after it.

    Returns:
        The shards of other ranks (distributed optimizer), everything where nobody shares the buffer, else nothing.
        Parameters whose gradients are added up over other ranks as well are left out. The values may have been
        multiplied by a finite factor.
    """
    pieces: list[Piece] = []
    for chunk_number, chunk in enumerate(chunks):
        # Set from 0.16 on while a step reduces whole buckets in order to save the gradients.
        if vars(chunk).get("force_all_reduce", False):
            continue
        foreign = summed_further(chunk)
        for buffer_number, buffer in enumerate(grad_buffers(chunk)):
            runs = _runs(buffer, unwanted=foreign)
            for bucket_number, start, end in _untouched_ranges(buffer):
                for low, high in _common(runs, start, end):
                    pieces.append(Piece(chunk_number, buffer_number, bucket_number, low, buffer.grad_data[low:high]))
    return pieces


def parameter_segments(chunks: Sequence[Module], piece: Piece) -> list[Segment]:
    """Return the parameters that a piece consists of, in its order; padding between them is left out."""
    chunk = chunks[piece.chunk]
    numel = piece.data.numel()
    if piece.buffer == NO_BUFFER:
        return [Segment(list(chunk.parameters())[piece.bucket], 0, numel, piece.start)]
    segments = []
    for param, start, end in _in_buffer_order(grad_buffers(chunk)[piece.buffer]):
        for low, high in _common([(start, end)], piece.start, piece.start + numel):
            segments.append(Segment(param, low - piece.start, high - piece.start, low - start))
    return segments


def _consumed_pieces(chunk_number: int, buffer_number: int, buffer: Any) -> Iterator[Piece]:
    outside = [place for place in _in_buffer_order(buffer) if has_separate_main_grad(place[0])]
    inside = _runs(buffer, unwanted={id(param) for param, _, _ in outside})
    for bucket_number, start, end in _consumed_ranges(buffer):
        for low, high in _common(inside, start, end):
            yield Piece(chunk_number, buffer_number, bucket_number, low, buffer.grad_data[low:high])
        for param, first, last in outside:
            for low, high in _common([(first, last)], start, end):
                main_grad: Tensor = vars(param)["main_grad"]
                data = main_grad.view(-1)[low - first : high - first]
                yield Piece(chunk_number, buffer_number, bucket_number, low, data)


def _parameter_pieces(chunk_number: int, chunk: Module) -> Iterator[Piece]:
    for number, param in enumerate(chunk.parameters()):
        gradient = local_gradient(param)
        if gradient is not None and gradient.data.numel():
            yield Piece(chunk_number, NO_BUFFER, number, gradient.start, gradient.data)


def _consumed_ranges(buffer: Any) -> list[tuple[int, int, int]]:
    """Return bucket number, first and end element of what is consumed; one range over all buckets where it can be."""
    if not uses_distributed_optimizer(buffer):
        return [(-1, 0, buffer.grad_data.numel())]
    return [(number, *owned_range(buffer, bucket)) for number, bucket in enumerate(buffer.buckets)]


def _untouched_ranges(buffer: Any) -> Iterator[tuple[int, int, int]]:
    """Yield bucket number, first and end element of what no data-parallel collective writes to."""
    instances = getattr(buffer.ddp_config, "num_distributed_optimizer_instances", 1)
    is_alone = buffer.data_parallel_group.size() == 1 and instances == 1
    for number, bucket in enumerate(buffer.buckets):
        start, end = bucket.offset, bucket.offset + bucket.grad_data.numel()
        owned_start, owned_end = owned_range(buffer, bucket)
        if is_alone:
            yield number, start, end
        else:
            yield number, start, owned_start
            yield number, owned_end, end


def _in_buffer_order(buffer: Any) -> list[tuple[Parameter, int, int]]:
    places = [(param, start, end) for param, (start, end, *_) in buffer.param_index_map.items()]
    return sorted(places, key=lambda place: place[1])


def _runs(buffer: Any, unwanted: Container[int] = ()) -> list[tuple[int, int]]:
    """Return the longest runs of the buffer without a parameter of these ids, padding inside a run included."""
    places = groupby(_in_buffer_order(buffer), key=lambda place: id(place[0]) not in unwanted)
    runs = [list(neighbours) for is_wanted, neighbours in places if is_wanted]
    return [(run[0][1], run[-1][2]) for run in runs]


def _common(runs: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the non-empty intersections of the runs with one range."""
    for run_start, run_end in runs:
        low, high = max(run_start, start), min(run_end, end)
        if low < high:
            yield low, high
