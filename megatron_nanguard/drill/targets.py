"""From a global name to the module or parameter on this rank, or to the names that were probably meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection

from torch.nn import Module

from megatron_nanguard.drill.planted import DrilledModel
from megatron_nanguard.drill.poison import ElementRange, outside, positions
from megatron_nanguard.drill.spec import Drill, Phase
from megatron_nanguard.errors import DrillError
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.records.parameters import ParameterEntry


def find_module(drill: Drill, site: DrilledModel) -> tuple[Module, ModelChunk]:
    """The module, and the chunk it is part of.

    Raises:
        DrillError: no chunk of this rank has it; names the nearest ones.
    """
    _check_name(drill, site.modules)
    module = site.modules[drill.target]
    for chunk in site.chunks:
        if any(member is module for member in chunk.modules()):
            return module, chunk
    raise AssertionError(f"{drill.target} is in no chunk")


def find_entries(drill: Drill, site: DrilledModel) -> list[ParameterEntry]:
    """The parameters of that name; two chunks of a rank may hold tied copies.

    Raises:
        DrillError: no chunk of this rank has it, and names the nearest ones; or this rank does not hold the elements.
    """
    _check_name(drill, {entry.name for entry in site.parameter_map.entries})
    entries = [entry for entry in site.parameter_map.entries if entry.name == drill.target]
    parts = [part for entry in entries for part in _parts(drill, entry)]
    if not parts:
        raise DrillError(f"drill {drill.text!r}: the optimizer of this rank owns no part of {drill.target}")
    if not any(positions(part, drill, site.head_width).numel() for part in parts):
        raise DrillError(f"drill {drill.text!r}: {outside(drill, parts[0])}")
    return entries


def _parts(drill: Drill, entry: ParameterEntry) -> list[ElementRange]:
    """Which elements of the parameter the phase can reach on this rank."""
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
