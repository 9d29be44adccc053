"""Global names: a layer or an expert has one number, whatever stage, chunk or expert rank holds it.

module.module.decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight     as stage 1 of 2, EP rank 1 holds it
decoder.layers.3.mlp.experts.local_experts.4.linear_fc1.weight                   as the whole model counts
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch.nn import Module, Parameter

from megatron_nanguard.megatron_api.model_chunks import layer_number, local_expert_indices, unwrap
from megatron_nanguard.megatron_api.protocols import ModelChunk

_MTP_DEPTH = re.compile(r"(^|\.)mtp\.layers\.\d+$")
_EXPERT_PARAMETER = re.compile(r"(weight|bias)(\d+)")


@dataclass(frozen=True, eq=False)
class NamedParameter:
    """A parameter of this rank and what it is called.

    Attributes:
        param: the model parameter itself.
        chunk: number of its model chunk.
        name: global name.
        local_name: name inside the chunk, wrappers left out.
        expert: belongs to an expert that other expert-parallel ranks do not hold.
    """

    param: Parameter
    chunk: int
    name: str
    local_name: str
    expert: bool


class _Place(NamedTuple):
    """The place of a module in the whole model.

    Attributes:
        path: its global path.
        experts: global numbers of the local experts of the MoE layer around it.
        in_experts: it is, or lies inside, that layer's `experts`.
        in_mtp: it lies inside a multi-token-prediction layer, whose inner numbers differ between releases.
    """

    path: str
    experts: Sequence[int] | None
    in_experts: bool
    in_mtp: bool


def name_modules(chunks: Sequence[ModelChunk]) -> dict[str, Module]:
    """Return every module inside the chunks' models by its global path."""
    named: dict[str, Module] = {}
    for number, chunk in enumerate(chunks):
        model = unwrap(chunk)
        modules = dict(model.named_modules())
        for local_path, place in _places(model).items():
            if local_path:
                named[_unique(place.path, number, named)] = modules[local_path]
    return named


def name_parameters(chunks: Sequence[ModelChunk]) -> list[NamedParameter]:
    """Return every parameter of the chunks with its global name, frozen ones included, in the chunks' order."""
    named: dict[str, NamedParameter] = {}
    for number, chunk in enumerate(chunks):
        model = unwrap(chunk)
        places = _places(model)
        for local_name, param in model.named_parameters():
            local_path, _, leaf = local_name.rpartition(".")
            place = places[local_path]
            name = _unique(_join(place.path, _global_leaf(place, leaf)), number, named)
            named[name] = NamedParameter(param, number, name, local_name, place.in_experts)
    return list(named.values())


def _places(model: Module) -> dict[str, _Place]:
    """Return the place of each module of a model, by local path."""
    places: dict[str, _Place] = {}
    for local_path, module in model.named_modules():
        if not local_path:
            places[local_path] = _Place("", local_expert_indices(module), in_experts=False, in_mtp=False)
            continue
        parent_path, _, leaf = local_path.rpartition(".")
        parent = places[parent_path]
        holder = parent_path.rpartition(".")[2]
        experts = local_expert_indices(module)
        places[local_path] = _Place(
            path=_join(parent.path, _global_number(parent, holder, leaf, module)),
            experts=parent.experts if experts is None else experts,
            in_experts=parent.in_experts or (leaf == "experts" and parent.experts is not None),
            in_mtp=parent.in_mtp or _MTP_DEPTH.search(local_path) is not None,
        )
    return places


def _global_number(parent: _Place, holder: str, leaf: str, module: Module) -> str:
    """Return what a child is called in the whole model: itself, or its number counted over all ranks."""
    number = layer_number(module)
    if holder == "layers" and leaf.isdigit() and number is not None and not parent.in_mtp:
        return str(number - 1)
    if holder == "local_experts" and leaf.isdigit() and parent.experts is not None:
        return str(parent.experts[int(leaf)])
    return leaf


def _global_leaf(place: _Place, leaf: str) -> str:
    """Return the last part of a parameter's name, with the experts it holds if the path does not contain them.

    Source: megatron/core/transformer/moe/experts.py: TEGroupedMLP keeps `weight<i>` per local expert; the GroupedMLP
        of 0.16 and before keeps all of them in one `weight1` and one `weight2`
    """
    if not place.in_experts or place.experts is None or ".local_experts." in place.path:
        return leaf
    single = _EXPERT_PARAMETER.fullmatch(leaf)
    if single and not place.path.endswith(".experts"):
        return f"{single[1]}{place.experts[int(single[2])]}"
    return f"{leaf}[{place.experts[0]}-{place.experts[-1]}]"


def _unique(name: str, chunk: int, taken: Container[str]) -> str:
    """Return a name that no earlier chunk has: layers without a number have the same name in every chunk."""
    return f"chunk{chunk}:{name}" if name in taken else name


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf
