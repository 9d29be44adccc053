"""Model, optimizer and gradients of this rank as named tensors, to save them, to load them and to compare them.

parameter/decoder.layers.3.mlp.linear_fc1.weight   buffer/decoder.layers.3.mlp.router.expert_bias
optimizer/optimizer 0, group 1, parameter 2/exp_avg
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.capture.tensor_file import can_hold
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.megatron_api import optimizer_state
from megatron_nanguard.megatron_api.buffers import local_gradient
from megatron_nanguard.megatron_api.model_chunks import unwrap
from megatron_nanguard.megatron_api.optimizer_state import optimizer_parameters
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.sentinel.gradient_norms import BucketNorms

PARAMETER, BUFFER, OPTIMIZER = "parameter/", "buffer/", "optimizer/"

Buffers = Mapping[tuple[Module, str], "Tensor | None"]
"""Content of buffers at an earlier moment, by module and name in the module."""


def live_state(
    chunks: Sequence[ModelChunk],
    names: ParameterMap,
    optimizer: MegatronOptimizer | None,
    at_entry: Buffers | None = None,
) -> dict[str, Tensor]:
    """Every parameter, buffer, main parameter and moment of this rank.

    Args:
        chunks: model chunks.
        names: map of their parameters.
        optimizer: as Megatron's factory returned it; None where it is not known.
        at_entry: buffers to return instead of those of the modules now.
    """
    found = {PARAMETER + entry.name: names.parameter(entry).detach() for entry in names.entries}
    for path, module in _modules(chunks).items():
        for name, buffer in module._buffers.items():
            content = buffer if at_entry is None else at_entry.get((module, name))
            if content is not None:
                found[f"{BUFFER}{path}.{name}"] = content.detach()
    for one in optimizer_state.optimizer_parameters(optimizer):
        if one.is_copy:
            found[f"{OPTIMIZER}{one.place}/{optimizer_state.MAIN}"] = one.main.detach()
        found |= {f"{OPTIMIZER}{one.place}/{name}": value for name, value in one.state.items()}
    return found


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that a file can hold, and a sentence for each other one."""
    kept = {name: tensor for name, tensor in tensors.items() if can_hold(tensor)}
    lost = [f"{name}: a {type(t).__name__} of {t.dtype}" for name, t in tensors.items() if name not in kept]
    return kept, lost


@torch.no_grad()
def put_back(
    saved: Mapping[str, Tensor], chunks: Sequence[ModelChunk], names: ParameterMap, optimizer: MegatronOptimizer | None
) -> None:
    """Write saved tensors over the live ones.

    Args:
        saved: by the names of `live_state`; other names are ignored.
        optimizer: None to leave its state as it is.
    Raises:
        ReplayError: the saved tensors are of another model or optimizer; nothing was changed.
    """
    live = live_state(chunks, names, optimizer)
    wanted = {name: tensor for name, tensor in saved.items() if name.startswith((PARAMETER, BUFFER))}
    if not wanted:
        return
    empty = _empty_buffers(chunks)
    of_optimizer = {name.removeprefix(OPTIMIZER): t for name, t in saved.items() if name.startswith(OPTIMIZER)}
    wrong = {
        "the capture lacks": [name for name in live if name.startswith(PARAMETER) and name not in wanted],
        "this model lacks": [name for name in wanted if name not in live and name not in empty],
        "this optimizer lacks": [] if optimizer is None else optimizer_state.unknown_places(optimizer, of_optimizer),
        "of other shape is": [name for name, t in saved.items() if name in live and t.shape != live[name].shape],
    }
    for words, found in wrong.items():
        if found:
            raise ReplayError(f"{words} {_few(found)}; build the model with the arguments and the layout of the run")
    for name, tensor in wanted.items():
        if name in live:
            live[name].copy_(tensor)
        else:
            module, buffer = empty[name]
            module._buffers[buffer] = tensor.to(next(chunks[0].parameters()).device, copy=True)
    optimizer_state.put_back(optimizer, of_optimizer)


def _empty_buffers(chunks: Sequence[ModelChunk]) -> dict[str, tuple[Module, str]]:
    """Buffers that are registered but None as yet, by the names of `live_state`."""
    return {
        f"{BUFFER}{path}.{name}": (module, name)
        for path, module in _modules(chunks).items()
        for name, buffer in module._buffers.items()
        if buffer is None
    }


def _modules(chunks: Sequence[ModelChunk]) -> dict[str, Module]:
    """The modules inside the chunks by global name, and the chunks themselves."""
    return {f"chunk{number}": unwrap(chunk) for number, chunk in enumerate(chunks)} | name_modules(chunks)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def gradients_by_name(names: ParameterMap) -> dict[str, Tensor]:
    """The gradient of each parameter now, flat; parameters without one are left out."""
    found = {entry.name: local_gradient(names.parameter(entry)) for entry in names.entries}
    return {name: gradient.data for name, gradient in found.items() if gradient is not None}


def norms_by_name(buckets: Sequence[BucketNorms], names: ParameterMap) -> dict[str, float]:
    """Gradient norms before the reduction by parameter, where one was taken per parameter.

    Sync: one host read per bucket.
    """
    found: dict[str, float] = {}
    for bucket in buckets:
        if len(bucket.norms) == len(bucket.params):
            values = bucket.norms.tolist()
            found |= {names.entry(param).name: norm for param, norm in zip(bucket.params, values, strict=True)}
    return found


def state_bytes(chunks: Sequence[ModelChunk], names: ParameterMap, optimizer: MegatronOptimizer | None) -> int:
    """Bytes that model and optimizer of this rank take in a file.

    Before its first step Adam has no moments; they are counted as two tensors of the size of each main parameter.
    """
    now = sum(tensor.nbytes for tensor in live_state(chunks, names, optimizer).values())
    return now + sum(2 * one.main.nbytes for one in optimizer_parameters(optimizer) if not one.state)
