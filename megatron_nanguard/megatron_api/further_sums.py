"""Parameters whose gradients `finalize_model_grads` adds up over more than the data-parallel ranks.

What their buffer holds afterwards is no longer this rank's own, not even in the shards it does not own.
"""

from __future__ import annotations

from typing import Any

from torch.nn import Module, Parameter

from megatron_nanguard.megatron_api.model_chunks import chunk_attribute
from megatron_nanguard.megatron_api.parallel import position


def summed_further(chunk: Module) -> set[int]:
    """Return the ids of the chunk's parameters whose gradients are also added up over TP, PP or GTP ranks.

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


def _is_summed_over_tp(name: str, param: Parameter, config: Any) -> bool:
    if getattr(param, "average_gradients_across_tp_domain", False) or getattr(param, "sequence_parallel", False):
        return True
    return getattr(config, "qk_layernorm", False) and ("q_layernorm" in name or "k_layernorm" in name)


def _is_summed_over_pp(name: str, param: Parameter) -> bool:
    # Position embeddings carry no mark; whether their group has more than one stage differs between releases.
    marks = ("shared_embedding", "pipeline_parallel", "flextron_router_pp_sync")
    return "position_embeddings" in name or any(getattr(param, mark, False) for mark in marks)


def _is_gtp_active(config: Any) -> bool:
    sizes = (getattr(config, field, 1) for field in ("gtp_weight_remat_size", "expert_gtp_weight_remat_size"))
    return any(size > 1 for size in sizes)
