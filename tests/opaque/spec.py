"""The layer spec `opaque`: `--spec tests.opaque.spec layer_spec` beside `--transformer-impl local`.

Importing it plants the faults of the environment when training begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import megatron.training.training as host
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, TEGroupedMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from tests.opaque import delayed_scaling, faults, options, permutation, rope
from tests.opaque.attention import DotProductAttention
from tests.opaque.grouped_linear import ColumnParallelGroupedLinear, RowParallelGroupedLinear
from tests.opaque.layernorm_linear import LayerNormColumnParallelLinear, Norm
from tests.opaque.layernorm_mlp import LayerNormMLP
from tests.opaque.linear import ColumnParallelLinear, RowParallelLinear


class OpaqueSpecProvider(LocalSpecProvider):  # type: ignore[misc]  # mypy does not follow Megatron
    """The opaque modules by the parts that Megatron's specs ask for."""

    def column_parallel_linear(self) -> type:
        """For what has no norm in front."""
        return ColumnParallelLinear

    def row_parallel_linear(self) -> type:
        """For projections back to the hidden size."""
        return RowParallelLinear

    def fuse_layernorm_and_linear(self) -> bool:
        """Whether there is one module for both."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """For both."""
        return LayerNormColumnParallelLinear

    def layer_norm(self, *args: Any, **kwargs: Any) -> type:
        """For a norm of its own."""
        return Norm

    def core_attention(self) -> type:
        """For softmax attention."""
        return DotProductAttention

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool) -> Any:
        """For experts; always grouped: Megatron's own option for that asks for Transformer Engine."""
        submodules = GroupedMLPSubmodules(
            linear_fc1=ColumnParallelGroupedLinear, linear_fc2=RowParallelGroupedLinear, activation_func=None
        )
        return partial(TEGroupedMLP, submodules=submodules)


def layer_spec(config: Any) -> ModuleSpec:
    """The layer of a GPT, as Megatron has it for Transformer Engine."""
    install()
    config.transformer.moe_permute_fusion = config.transformer.num_moe_experts is not None
    config.transformer.apply_rope_fusion = config.position_embedding_type == "rope"
    backend = OpaqueSpecProvider()
    num_experts = config.transformer.num_moe_experts
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=LayerNormColumnParallelLinear,
                    core_attention=DotProductAttention,
                    linear_proj=RowParallelLinear,
                    q_layernorm=IdentityOp,
                    k_layernorm=IdentityOp,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=Norm if num_experts else IdentityOp,
            mlp=_mlp(backend, num_experts, config.transformer.moe_grouped_gemm),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def _mlp(backend: OpaqueSpecProvider, num_experts: int | None, grouped_gemm: bool) -> Any:
    if num_experts is None and options.FUSED_MLP:
        submodules = MLPSubmodules(linear_fc1=LayerNormColumnParallelLinear, linear_fc2=RowParallelLinear)
        return partial(LayerNormMLP.as_mlp_submodule, submodules=submodules)
    return get_mlp_module_spec_for_backend(backend, num_experts=num_experts, moe_grouped_gemm=grouped_gemm)


def install() -> None:
    """Put the Functions that Megatron calls without a module where those of Transformer Engine would be."""
    rope_utils.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb
    moe_utils.HAVE_TE = True
    moe_utils.fused_permute = permutation.moe_permute
    moe_utils.fused_permute_with_probs = permutation.moe_permute_with_probs
    moe_utils.fused_unpermute = permutation.moe_unpermute
    moe_utils.fused_sort_chunks_by_index = permutation.moe_sort_chunks_by_index
    moe_utils.fused_sort_chunks_by_index_with_probs = permutation.moe_sort_chunks_by_index_with_probs


def with_delayed_scaling(train: Callable[..., Any]) -> Callable[..., Any]:
    """Let each model chunk be a context of delayed scaling, and its first micro-batch the one that casts weights."""

    def training(forward_step: Any, chunks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for chunk in chunks:
            delayed_scaling.cast_in(chunk, parallel_state.get_amax_reduction_group(with_context_parallel=True))
        return train(forward_step, chunks, *args, **kwargs)

    return training


host.train = faults.planted(host.train)
if options.DELAYED_SCALING:
    host.train = with_delayed_scaling(host.train)
