"""Contiguous pieces of gradients: what the optimizer consumes, and which of this rank's own values survive a reduction.

buffer 0   [ bucket 0       | bucket 1       ]
rank 0     [ own   | local  | own   | local  ]    distributed optimizer on two ranks: own is reduced,
rank 1     [ local | own    | local | own    ]    local still holds this rank's values from before
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.megatron_api import buffers
from megatron_nanguard.megatron_api.model_chunks import chunk_attribute
from megatron_nanguard.megatron_api.parallel import position
from megatron_nanguard.megatron_api.protocols import ModelChunk, ModelParameter, ParamAndGradBuffer, TransformerConfig

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
        start: first element inside the buffer; without a buffer inside the flattened parameter (-1 where that
            cannot be derived from the sharding).
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


def reduced_pieces(chunks: Sequence[ModelChunk]) -> list[Piece]:
    """Return what the optimizer will consume on this rank once the gradients are reduced.

    Returns:
        Plain DDP: each buffer. Distributed optimizer: this rank's shard of each bucket. A main grad outside the buffer
        is taken in its place. Without buffers: the gradient of each parameter, if it is set.
    """
    pieces: list[Piece] = []
    for chunk_number, chunk in enumerate(chunks):
        grad_buffers = buffers.grad_buffers(chunk)
        for buffer_number, buffer in enumerate(grad_buffers):
            pieces += _consumed_pieces(chunk_number, buffer_number, buffer)
        if not grad_buffers:
            pieces += _parameter_pieces(chunk_number, chunk)
    return pieces


def surviving_local_pieces(chunks: Sequence[ModelChunk]) -> list[Piece]:
    """Return the pieces that still hold this rank's own values from before the reduction.

    Returns:
        The shards of other ranks (distributed optimizer), everything if no other rank shares the buffer, else nothing.
        Parameters whose gradients are summed over other groups too are left out. The values may have been multiplied
        by a finite factor.
    """
    pieces: list[Piece] = []
    for chunk_number, chunk in enumerate(chunks):
        # Set from 0.16 on while a step reduces whole buckets in order to save the gradients.
        if vars(chunk).get("force_all_reduce", False):
            continue
        foreign = params_summed_beyond_dp(chunk)
        for buffer_number, buffer in enumerate(buffers.grad_buffers(chunk)):
            runs = _runs(buffer, unwanted=foreign)
            for bucket_number, start, end in _untouched_ranges(buffer):
                for low, high in _common(runs, start, end):
                    pieces.append(Piece(chunk_number, buffer_number, bucket_number, low, buffer.grad_data[low:high]))
    return pieces


def parameter_segments(chunks: Sequence[ModelChunk], piece: Piece) -> list[Segment]:
    """Return the parameters that a piece consists of, in its order; padding between them is left out."""
    chunk = chunks[piece.chunk]
    numel = piece.data.numel()
    if piece.buffer == NO_BUFFER:
        return [Segment(list(chunk.parameters())[piece.bucket], 0, numel, piece.start)]
    segments = []
    for param, start, end in _in_buffer_order(buffers.grad_buffers(chunk)[piece.buffer]):
        for low, high in _common([(start, end)], piece.start, piece.start + numel):
            segments.append(Segment(param, low - piece.start, high - piece.start, low - start))
    return segments


def params_summed_beyond_dp(chunk: ModelChunk) -> set[int]:
    """Return the ids of the chunk's parameters whose gradients are also summed over TP, PP or GTP ranks.

    Their buffer no longer holds this rank's own values afterwards, not even in the shards that it does not own.

    Source: megatron/core/distributed/finalize_model_grads.py, `_allreduce_non_tensor_model_parallel_grads`,
        `_allreduce_word_embedding_grads`, `_allreduce_position_embedding_grads`,
        `_allreduce_conditional_embedding_grads`, `_allreduce_router_grads`,
        `_allreduce_replicated_grads_over_gtp_remat_group`
    """
    config = chunk_attribute(chunk, "config")
    over_tp = position(chunk, "tp").size > 1
    over_pp = position(chunk, "pp").size > 1
    over_gtp = _is_gtp_active(config)
    return {
        id(param)
        for name, param in chunk.named_parameters()
        if (over_tp and _is_summed_over_tp(name, param, config))
        or (over_pp and _is_summed_over_pp(name, param))
        or (over_gtp and not getattr(param, "is_gtp_weight_remat", False))
    }


def _consumed_pieces(chunk_number: int, buffer_number: int, buffer: ParamAndGradBuffer) -> Iterator[Piece]:
    outside = [place for place in _in_buffer_order(buffer) if buffers.has_separate_main_grad(place[0])]
    inside = _runs(buffer, unwanted={id(param) for param, _, _ in outside})
    for bucket_number, start, end in _consumed_ranges(buffer):
        for low, high in _common(inside, start, end):
            yield Piece(chunk_number, buffer_number, bucket_number, low, buffer.grad_data[low:high])
        for param, first, last in outside:
            for low, high in _common([(first, last)], start, end):
                main_grad: Tensor = vars(param)["main_grad"]
                data = main_grad.view(-1)[low - first : high - first]
                yield Piece(chunk_number, buffer_number, bucket_number, low, data)


def _parameter_pieces(chunk_number: int, chunk: ModelChunk) -> Iterator[Piece]:
    for number, param in enumerate(chunk.parameters()):
        gradient = buffers.local_gradient(param)
        if gradient is not None and gradient.data.numel():
            yield Piece(chunk_number, NO_BUFFER, number, gradient.start, gradient.data)


def _consumed_ranges(buffer: ParamAndGradBuffer) -> list[tuple[int, int, int]]:
    """Return bucket number, first and end element of what is consumed; one range over all buckets where it can be."""
    if not buffers.uses_distributed_optimizer(buffer):
        return [(-1, 0, buffer.grad_data.numel())]
    return [(number, *buffers.owned_range(buffer, bucket)) for number, bucket in enumerate(buffer.buckets)]


def _untouched_ranges(buffer: ParamAndGradBuffer) -> Iterator[tuple[int, int, int]]:
    """Yield bucket number, first and end element of what no data-parallel collective writes to."""
    instances = getattr(buffer.ddp_config, "num_distributed_optimizer_instances", 1)
    is_alone = buffer.data_parallel_group.size() == 1 and instances == 1
    for number, bucket in enumerate(buffer.buckets):
        start, end = bucket.offset, bucket.offset + bucket.grad_data.numel()
        owned_start, owned_end = buffers.owned_range(buffer, bucket)
        if is_alone:
            yield number, start, end
        else:
            yield number, start, owned_start
            yield number, owned_end, end


def _in_buffer_order(buffer: ParamAndGradBuffer) -> list[tuple[ModelParameter, int, int]]:
    places = [(param, start, end) for param, (start, end, *_) in buffer.param_index_map.items()]
    return sorted(places, key=lambda place: place[1])


def _runs(buffer: ParamAndGradBuffer, unwanted: Container[int] = ()) -> list[tuple[int, int]]:
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


def _is_summed_over_tp(name: str, param: Parameter, config: TransformerConfig | None) -> bool:
    if getattr(param, "average_gradients_across_tp_domain", False) or getattr(param, "sequence_parallel", False):
        return True
    return getattr(config, "qk_layernorm", False) and ("q_layernorm" in name or "k_layernorm" in name)


def _is_summed_over_pp(name: str, param: Parameter) -> bool:
    # Position embeddings carry no mark; whether their group has more than one stage differs between releases.
    marks = ("shared_embedding", "pipeline_parallel", "flextron_router_pp_sync")
    return "position_embeddings" in name or any(getattr(param, mark, False) for mark in marks)


def _is_gtp_active(config: TransformerConfig | None) -> bool:
    sizes = (getattr(config, field, 1) for field in ("gtp_weight_remat_size", "expert_gtp_weight_remat_size"))
    return any(size > 1 for size in sizes)
