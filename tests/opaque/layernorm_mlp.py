"""A whole MLP with its norm in one Function: norm, product, GELU, product.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/module/layernorm_mlp.py, _LayerNormMLP
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.transformer.mlp import MLP
from torch import Tensor

from tests.opaque import kernels, options
from tests.opaque.faults import Seam, strike
from tests.opaque.gemm import allreduce, gather_along_first_dim, general_gemm, reduce_scatter_along_first_dim, wait
from tests.opaque.layernorm_linear import norm_gradients, normalize
from tests.opaque.linear import bias_gradient, weight_gradient


class _LayerNormMLP(torch.autograd.Function):
    """Norm, gather of the sequence, fc1, GELU, fc2, sum."""

    @staticmethod
    def forward(
        ctx: Any,
        inp: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor | None,
        fc1_weight: Tensor,
        fc1_bias: Tensor | None,
        fc2_weight: Tensor,
        non_tensor_args: tuple[Any, ...],
    ) -> Tensor:
        """The bias of fc2 is added later, together with dropout and residual."""
        (
            eps,
            is_first_microbatch,
            fuse_wgrad_accumulation,
            tp_group,
            sequence_parallel,
            activation_dtype,
            normalization,
            due,
        ) = non_tensor_args
        inputmat = inp.reshape(-1, inp.shape[-1])
        ln_out, mean, rsigma = normalize(inputmat, ln_weight, ln_bias, eps, normalization == "RMSNorm")
        total = gather_along_first_dim(ln_out, tp_group)[0] if sequence_parallel else ln_out
        fc1_out = general_gemm(fc1_weight, total, activation_dtype, bias=fc1_bias)
        act_out = torch.empty_like(fc1_out)
        kernels.gelu_forward(fc1_out, act_out)
        out = general_gemm(fc2_weight, act_out, activation_dtype)
        strike(due, "fwd", out)
        communicate = reduce_scatter_along_first_dim if sequence_parallel else allreduce
        out, _ = communicate(out, tp_group)

        if ctx is not None:
            ctx.save_for_backward(
                *(inputmat, ln_weight, ln_bias, ln_out, mean, rsigma),
                *(fc1_weight, fc1_bias, fc1_out, act_out, fc2_weight),
            )
            ctx.weights = [
                SimpleNamespace(
                    origin_weight_ref=weakref.ref(weight),
                    main_grad_func=lambda weight=weight: weight.main_grad,
                    fuse_wgrad_accumulation=fuse_wgrad_accumulation,
                    is_first_microbatch=is_first_microbatch,
                    activation_dtype=activation_dtype,
                )
                for weight in (fc1_weight, fc2_weight)
            ]
            ctx.tp_group, ctx.sequence_parallel, ctx.normalization = tp_group, sequence_parallel, normalization
            ctx.activation_dtype, ctx.inp_shape, ctx.due = activation_dtype, inp.shape, due
        return out.view(-1, *inp.shape[1:-1], fc2_weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input and of all parameters."""
        inputmat, ln_weight, ln_bias, ln_out, mean, rsigma, *of_products = ctx.saved_tensors
        fc1_weight, fc1_bias, fc1_out, act_out, fc2_weight = of_products
        grad = grad_output.reshape(-1, grad_output.shape[-1])
        total = ln_out
        if ctx.sequence_parallel:
            grad, _ = gather_along_first_dim(grad, ctx.tp_group)
            total, _ = gather_along_first_dim(ln_out, ctx.tp_group)
        d_act = general_gemm(fc2_weight, grad, ctx.activation_dtype, layout="NN")
        dw2 = weight_gradient(act_out, grad, ctx.weights[1], "")
        d_fc1 = torch.empty_like(fc1_out)
        kernels.gelu_backward(d_act, fc1_out, d_fc1)
        d_ln = general_gemm(fc1_weight, d_fc1, ctx.activation_dtype, layout="NN")
        communicate = reduce_scatter_along_first_dim if ctx.sequence_parallel else allreduce
        d_ln, work = communicate(d_ln, ctx.tp_group, is_async=True)
        dw1 = weight_gradient(total, d_fc1, ctx.weights[0], ctx.due)
        db1 = bias_gradient(d_fc1, fc1_bias)
        wait(work)
        is_rms = ctx.normalization == "RMSNorm"
        dx, d_ln_weight, d_ln_bias = norm_gradients(d_ln, inputmat, (mean, rsigma), ln_weight, ln_bias, is_rms)
        strike(ctx.due, "bwd", dx)
        return dx.view(ctx.inp_shape), d_ln_weight, d_ln_bias, dw1, db1, dw2, None


class LayerNormMLP(MLP):
    """Megatron's MLP, whose modules hold the parameters and are not called."""

    seam: Seam | None = None
    is_first_microbatch = True

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] to the same."""
        fc1, fc2, config = self.linear_fc1, self.linear_fc2, self.config
        non_tensor_args = (
            config.layernorm_epsilon,
            self.is_first_microbatch,
            options.FUSED_WGRAD,
            fc1.tp_group,
            config.sequence_parallel,
            hidden_states.dtype,
            config.normalization,
            "" if self.seam is None else self.seam.due(),
        )
        call, context = (_LayerNormMLP.apply, ()) if torch.is_grad_enabled() else (_LayerNormMLP.forward, (None,))
        out = call(
            *context,
            hidden_states,
            fc1.layer_norm_weight,
            fc1.layer_norm_bias,
            fc1.weight,
            fc1.bias,
            fc2.weight,
            non_tensor_args,
        )
        self.is_first_microbatch = False
        return out, fc2.bias
