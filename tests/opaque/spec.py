"""The layer spec `opaque`: `--spec tests.opaque.spec layer_spec` beside `--transformer-impl local`.

Importing it plants the faults of the environment when training begins.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import megatron.training.training as host
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from tests.opaque import faults, options
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


def layer_spec(config: Any) -> ModuleSpec:
    """The layer of a GPT, as Megatron has it for Transformer Engine."""
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
                    core_attention=backend.core_attention(),
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


host.train = faults.planted(host.train)
