"""Which parameter a gradient belongs to: the content of `param_map_*.json`, one per rank."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes

_LAYER = re.compile(r"^.*?layers\.\d+|^(?:.*:)?(?:de|en)coder\.[^.]+|^[^.]+")
_NUMBER = re.compile(r"\blayers\.(\d+)")


@dataclass(frozen=True)
class ParameterEntry:
    """One parameter as one rank holds it.

    Attributes:
        id: running number on this rank, in the order of the model chunks and their parameters.
        name: global name; layer and expert numbers count over all pipeline stages and expert ranks.
        local_name: the name inside this rank's model chunk.
        shape: shape of this rank's part.
        dtype: such as "bfloat16".
        partition_dim: tensor dim that tensor parallelism splits; null when every TP rank holds all of it.
        shared: a copy of a parameter that another rank counts in the gradient norm.
        tied: shares its values with another parameter, such as the output layer with the embedding.
        expert: belongs to an expert, and so is reduced over the expert replicas.
        chunk: model chunk of this rank; more than one under virtual pipelining.
        buffer: which gradient buffer holds it; null when Megatron gave it none.
        bucket: bucket inside the buffer.
        start: first element inside the gradient buffer.
        end: one past its last element inside the gradient buffer.
        shards: element ranges [first, one past the last] of the flattened parameter whose optimizer state this rank
            owns.
    """

    id: int
    name: str
    local_name: str
    shape: tuple[int, ...]
    dtype: str
    partition_dim: int | None
    shared: bool
    tied: bool
    expert: bool
    chunk: int
    buffer: int | None
    bucket: int | None
    start: int | None
    end: int | None
    shards: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ParameterMapFile:
    """The parameters of one rank, or a pointer to the file of a replica that holds the same.

    Attributes:
        schema_version: form of this file.
        coordinates: place of the rank in the parallel layout.
        sizes: the parallel layout.
        same_as: name of the file with the same entries; null when this file holds the entries.
        entries: the parameters; empty when `same_as` is set.
    """

    schema_version: int
    coordinates: Coordinates
    sizes: ParallelSizes
    same_as: str | None
    entries: tuple[ParameterEntry, ...]


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: "decoder.layers.3", "decoder.final_layernorm", "embedding"."""
    match = _LAYER.match(name)
    return match[0] if match else name


def depth_of(name: str) -> float:
    """How deep a parameter or layer lies, by its layer number; embeddings first, final norm and head last."""
    match = _NUMBER.search(name)
    if match is None:
        return -1.0 if "embedding" in name else math.inf
    return float(match[1]) + (1e6 if name.startswith("mtp.") else 0.0)
