"""The parameters of one optimizer on this rank: names, places in buffers, shards; and the file that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch.nn import Parameter

from megatron_nanguard.megatron_api.buffers import grad_buffers, owned_range, uses_distributed_optimizer
from megatron_nanguard.megatron_api.pieces import Piece, Segment, parameter_segments
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.parameters.global_names import NamedParameter, name_parameters
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.run.parameters import ParameterEntry, ParameterMapFile
from megatron_nanguard.tensor_names import dtype_name, element_index


class _BufferPlace(NamedTuple):
    buffer: int | None
    bucket: int | None
    start: int | None
    end: int | None
    shards: tuple[tuple[int, int], ...]


class ParameterMap:
    """The names of the parameters of some model chunks, and the places of their gradients.

    Holds the parameters themselves: an id alone may be reused for another object.

    Attributes:
        entries: one per parameter, in the chunks' order; `entries[n].id == n`.
        is_sharded: ranks of one replica group own different parts (distributed optimizer, FSDP).
    """

    def __init__(self, chunks: Sequence[ModelChunk], sizes: ParallelSizes) -> None:
        """Read the map off the chunks, after DDP has laid out its buffers.

        Args:
            chunks: model chunks of this rank, as the optimizer got them.
            sizes: the parallel layout.
        """
        self._chunks = tuple(chunks)
        named = name_parameters(chunks)
        places = _buffer_places(chunks)
        self._params = tuple(item.param for item in named)
        self.entries = tuple(
            _entry(number, item, places.get(id(item.param)), sizes) for number, item in enumerate(named)
        )
        self._numbers = {id(param): number for number, param in enumerate(self._params)}
        buffers = [buffer for chunk in chunks for buffer in grad_buffers(chunk)]
        self.is_sharded = not buffers or any(uses_distributed_optimizer(buffer) for buffer in buffers)

    def entry(self, param: Parameter) -> ParameterEntry:
        """Return the entry of a model parameter.

        Raises:
            KeyError: the parameter is in none of the chunks.
        """
        return self.entries[self._numbers[id(param)]]

    def parameter(self, entry: ParameterEntry) -> Parameter:
        """Return the model parameter of an entry."""
        return self._params[entry.id]

    def segments(self, piece: Piece) -> list[tuple[ParameterEntry, Segment]]:
        """Return the parameters that a piece consists of, in its order; padding is left out."""
        return [(self.entry(segment.param), segment) for segment in parameter_segments(self._chunks, piece)]

    def locate(self, piece: Piece, offset: int) -> tuple[ParameterEntry, tuple[int, ...] | None] | None:
        """Return the parameter at one element of a piece and the index inside it; None for padding.

        The index alone is None if it cannot be derived from the sharding.
        """
        for entry, (_, piece_start, piece_end, param_start) in self.segments(piece):
            if piece_start <= offset < piece_end:
                return entry, index_in(entry, param_start, offset - piece_start)
        return None


def index_in(entry: ParameterEntry, param_start: int, offset: int) -> tuple[int, ...] | None:
    """Return the index of an element in the parameter's own shape; None if `param_start` is unknown (-1)."""
    return None if param_start < 0 else element_index(param_start + offset, entry.shape)


def map_file(parameters: ParameterMap, coordinates: Coordinates, sizes: ParallelSizes) -> tuple[str, ParameterMapFile]:
    """Return this rank's file name and content.

    Replicas that hold the same point to the first of them, so that a run of many replicas writes each map once.
    """
    name = file_name(coordinates, sizes)
    # Expert ranks are neighbours inside the data-parallel group: the first replica of expert rank n is dp n.
    original = file_name(replace(coordinates, cp=0, dp=coordinates.ep), sizes)
    # With CP or another TP size for experts, releases differ in where the expert ranks lie.
    has_simple_replicas = sizes.ep == 1 or (sizes.cp == 1 and sizes.expert_tp == sizes.tp)
    is_copy = original != name and not parameters.is_sharded and has_simple_replicas
    record = ParameterMapFile(
        schema_version=SCHEMA_VERSION,
        coordinates=coordinates,
        sizes=sizes,
        same_as=original if is_copy else None,
        entries=() if is_copy else parameters.entries,
    )
    return name, record


def file_name(coordinates: Coordinates, sizes: ParallelSizes) -> str:
    """Return the name of a rank's parameter map."""
    return f"param_map_{coordinates.label(sizes)}.json"


def _buffer_places(chunks: Sequence[ModelChunk]) -> dict[int, _BufferPlace]:
    """Return the place of each parameter's gradient, by id.

    Source: megatron/core/distributed/param_and_grad_buffer.py, `param_index_map`; the shard is the one that
        `DistributedOptimizer._build_model_gbuf_param_range_map` gives this rank
    """
    places: dict[int, _BufferPlace] = {}
    for chunk in chunks:
        for buffer_number, buffer in enumerate(grad_buffers(chunk)):
            owned = [owned_range(buffer, bucket) for bucket in buffer.buckets]
            for param, (start, end, bucket) in buffer.param_index_map.items():
                low, high = max(start, owned[bucket][0]), min(end, owned[bucket][1])
                shards = ((low - start, high - start),) if low < high else ()
                places[id(param)] = _BufferPlace(buffer_number, bucket, start, end, shards)
    return places


def _entry(number: int, item: NamedParameter, place: _BufferPlace | None, sizes: ParallelSizes) -> ParameterEntry:
    param = item.param
    whole = ((0, param.numel()),) if param.requires_grad else ()
    return ParameterEntry(
        id=number,
        name=item.name,
        local_name=item.local_name,
        shape=tuple(param.shape),
        dtype=dtype_name(param.dtype),
        partition_dim=_partition_dim(param, sizes.expert_tp if item.expert else sizes.tp),
        shared=getattr(param, "shared", False),
        tied=getattr(param, "shared_embedding", False),
        expert=item.expert,
        chunk=item.chunk,
        **(place or _BufferPlace(None, None, None, None, whole))._asdict(),
    )


def _partition_dim(param: Parameter, tp_size: int) -> int | None:
    """Return the tensor dim that is split over TP ranks; Megatron marks parameters so even where TP is 1."""
    if tp_size == 1 or not getattr(param, "tensor_model_parallel", False):
        return None
    dim: int = getattr(param, "partition_dim", -1)
    return dim if dim >= 0 else None
