"""How wide an attention head is."""

from __future__ import annotations

from torch.nn import Module

from megatron_nanguard.megatron_api.model_chunks import chunk_attribute


def head_width(chunk: Module) -> int | None:
    """Return how many elements of the last dim belong to one head; None for a model without Megatron's config.

    Source: megatron/core/transformer/transformer_config.py, TransformerConfig.kv_channels
    """
    width: int | None = getattr(chunk_attribute(chunk, "config"), "kv_channels", None)
    return width
