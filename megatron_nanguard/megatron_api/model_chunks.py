"""What is read of a model chunk and its modules: wrappers, layer numbers, experts, attention heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.nn import Module

from megatron_nanguard.megatron_api.protocols import ModelChunk

_HEAD_COUNTS = ("num_attention_heads_per_partition", "num_query_groups_per_partition")
"""Attributes of an attention module: how many heads of queries, and of keys and values, it has on this rank."""


def chunks_of(model: ModelChunk | Sequence[ModelChunk]) -> list[ModelChunk]:
    """Return the model chunks of a schedule's ``model``: one, or a list of them under virtual pipelining."""
    return list(model) if isinstance(model, Sequence) else [model]


def wrapper_chain(chunk: ModelChunk) -> Iterator[Module]:
    """Yield the chunk and what it wraps, outermost first: DDP or FSDP, then Float16Module, then the model.

    Source: megatron/core/transformer/module.py and megatron/core/distributed: every wrapper calls its inside `module`.
    """
    level: Module | None = chunk
    while level is not None:
        yield level
        level = level._modules.get("module")


def unwrap(chunk: ModelChunk) -> Module:
    """Return the model inside all wrappers."""
    *_, model = wrapper_chain(chunk)
    return model


def chunk_attribute(chunk: ModelChunk, name: str) -> Any:
    """Return the first instance attribute of this name that is set, outermost wrapper first; None if none is.

    Only `vars` is read: class attributes and a wrapper's `__getattr__` are not about this chunk.
    """
    values = (vars(level).get(name) for level in wrapper_chain(chunk))
    return next((value for value in values if value is not None), None)


@contextmanager
def changed_config(chunks: Sequence[ModelChunk], name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Within the context an attribute of every config of the chunks has the value that ``change(value)`` gives."""
    configs = {id(config): config for config in (chunk_attribute(chunk, "config") for chunk in chunks)}
    before = [(config, getattr(config, name)) for config in configs.values() if hasattr(config, name)]
    for config, value in before:
        setattr(config, name, change(value))
    try:
        yield
    finally:
        for config, value in before:
            setattr(config, name, value)


def vp_stage(chunk: ModelChunk) -> int | None:
    """Return the chunk's virtual pipeline stage; None up to 0.12, where the place in the list of chunks counts.

    Source: megatron/core/models/gpt/gpt_model.py, GPTModel.vp_stage
    """
    stage: int | None = chunk_attribute(chunk, "vp_stage")
    return stage


def layer_number(module: Module) -> int | None:
    """Return a layer's own number, counted from 1 over all stages and chunks; None when it has none.

    Source: megatron/core/transformer/transformer_layer.py, TransformerLayer.layer_number
    """
    number = vars(module).get("layer_number")
    return number if isinstance(number, int) else None


def local_expert_indices(module: Module) -> Sequence[int] | None:
    """Return the global numbers of the experts that live on this rank; None when the module is no MoE layer.

    Source: megatron/core/transformer/moe/moe_layer.py, BaseMoELayer.local_expert_indices
    """
    indices: Sequence[int] | None = vars(module).get("local_expert_indices")
    return indices


def head_width(chunk: ModelChunk) -> int | None:
    """Return how many elements of the last dim belong to one head; None for a model without Megatron's config.

    Source: megatron/core/transformer/transformer_config.py, TransformerConfig.kv_channels
    """
    width: int | None = getattr(chunk_attribute(chunk, "config"), "kv_channels", None)
    return width


def attention_heads(models: Iterable[Module]) -> frozenset[int]:
    """Return every number of heads, of queries or of keys, that a module in these models has on this rank.

    Source: megatron/core/transformer/attention.py, Attention.num_attention_heads_per_partition
    """
    modules = (module for model in models for module in model.modules())
    counts = (vars(module).get(name) for module in modules for name in _HEAD_COUNTS)
    return frozenset(count for count in counts if isinstance(count, int) and count > 1)
