"""The model that drills are planted in: find a module or parameter by its global name, or say which names are near."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch.nn import Module

from megatron_nanguard.drill.poison import ElementRange, positions, why_none
from megatron_nanguard.drill.spec import Drill, Phase
from megatron_nanguard.errors import DrillError
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.run.parameters import ParameterEntry


@dataclass(frozen=True)
class DrilledModel:
    """The model as this rank holds it.

    Attributes:
        chunks: the model chunks, wrapped as Megatron trains them.
        modules: module by global name.
        parameter_map: entry by parameter, and parameters by place in a buffer.
        head_width: elements of the last dim that belong to one attention head; None where the model has no heads.
    """

    chunks: Sequence[ModelChunk]
    modules: Mapping[str, Module]
    parameter_map: ParameterMap
    head_width: int | None


def find_module(drill: Drill, model: DrilledModel) -> tuple[Module, ModelChunk]:
    """Return the module, and the chunk it is part of.

    Raises:
        DrillError: no chunk of this rank has it; names the nearest ones.
    """
    _check_name(drill, model.modules)
    module = model.modules[drill.target]
    for chunk in model.chunks:
        if any(member is module for member in chunk.modules()):
            return module, chunk
    raise AssertionError(f"{drill.target} is in no chunk")


def find_entries(drill: Drill, model: DrilledModel) -> list[ParameterEntry]:
    """Return the parameters of that name; two chunks of a rank may hold tied copies.

    Raises:
        DrillError: no chunk of this rank has it, and names the nearest ones; or this rank does not hold the elements.
    """
    _check_name(drill, {entry.name for entry in model.parameter_map.entries})
    entries = [entry for entry in model.parameter_map.entries if entry.name == drill.target]
    parts = [part for entry in entries for part in _parts(drill, entry)]
    if not parts:
        raise DrillError(f"drill {drill.text!r}: the optimizer of this rank owns no part of {drill.target}")
    if not any(positions(part, drill, model.head_width).numel() for part in parts):
        raise DrillError(f"drill {drill.text!r}: {why_none(drill, parts[0])}")
    return entries


def _parts(drill: Drill, entry: ParameterEntry) -> list[ElementRange]:
    """Return which elements of the parameter the phase can overwrite on this rank."""
    if drill.phase is Phase.REDUCED:
        return [ElementRange(entry.shape, start, end) for start, end in entry.shards]
    return [ElementRange(entry.shape, 0, math.prod(entry.shape))]


def _check_name(drill: Drill, names: Collection[str]) -> None:
    if drill.target in names:
        return
    near = difflib.get_close_matches(drill.target, names, n=3, cutoff=0.5) or sorted(names)[:3]
    raise DrillError(
        f"drill {drill.text!r}: this rank has no {drill.phase.target_key} {drill.target!r}; near it: {', '.join(near)}"
    )
