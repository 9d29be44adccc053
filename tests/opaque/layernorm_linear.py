"""Norm and column-parallel linear layer in one Function, and the norm alone.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py, _LayerNormLinear;
its Megatron side is megatron/core/extensions/transformer_engine.py, TELayerNormColumnParallelLinear and TENorm
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from tests.opaque import kernels, options
from tests.opaque.base import OpaqueModule, quantize_weight
from tests.opaque.delayed_scaling import GlobalStateManager
from tests.opaque.faults import strike
from tests.opaque.float8 import Float8Storage, prepare_for_saving, restore_from_func_ctx
from tests.opaque.gemm import (
    Operand,
    allreduce,
    gather_along_first_dim,
    general_gemm,
    reduce_scatter_along_first_dim,
    wait,
)
from tests.opaque.linear import ColumnParallelLinear, bias_gradient, cast_if_needed, weight_gradient


def normalize(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, rms: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The normed rows, their means and the inverse of their deviations."""
    out = torch.empty_like(x)
    mean, rsigma = (torch.empty(x.shape[0], dtype=torch.float32, device=x.device) for _ in range(2))
    kernels.norm_forward(x, weight, bias, out, mean, rsigma, eps, rms)
    return out, mean, rsigma


def norm_gradients(
    grad: Tensor, x: Tensor, statistics: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor | None, rms: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the input, the weight and the bias."""
    dx, dw = torch.empty_like(x), torch.empty_like(weight)
    db = None if bias is None else torch.empty_like(bias)
    kernels.norm_backward(grad, x, statistics, weight, dx, dw, db, rms)
    return dx, dw, db


class _LayerNormLinear(torch.autograd.Function):
    """Norm, gather of the sequence, product."""

    @staticmethod
    def forward(
        ctx: Any,
        inp: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor | None,
        weight: Tensor,
        weight_workspace: Float8Storage | None,
        bias: Tensor | None,
        non_tensor_args: tuple[Any, ...],
    ) -> tuple[Tensor, Float8Storage | None]:
        """What is no tensor comes in one tuple."""
        (
            eps,
            is_first_microbatch,
            fuse_wgrad_accumulation,
            (input_quantizer, weight_quantizer, grad_output_quantizer),
            tp_group,
            sequence_parallel,
            activation_dtype,
            normalization,
            reduces_fp8,
            due,
        ) = non_tensor_args
        inputmat = cast_if_needed(inp, activation_dtype).reshape(-1, inp.shape[-1])
        ln_out, mean, rsigma = normalize(inputmat, ln_weight, ln_bias, eps, normalization == "RMSNorm")
        total: Operand = gather_along_first_dim(ln_out, tp_group)[0] if sequence_parallel else ln_out
        kept: Operand = ln_out
        if input_quantizer is not None:
            total = input_quantizer(total)
            kept = ln_out if sequence_parallel else total
        weightmat, new_workspace = quantize_weight(weight, weight_quantizer, weight_workspace, is_first_microbatch)
        out = general_gemm(weightmat, total, activation_dtype, bias=bias)
        strike(due, "fwd", out)

        if ctx is not None:
            to_save = (inputmat, weightmat, weight, bias, ln_weight, ln_bias, kept, mean, rsigma)
            tensors, ctx.tensor_objects = prepare_for_saving(*to_save)
            ctx.save_for_backward(*tensors)
            ctx.origin_weight_ref = weakref.ref(weight)
            ctx.main_grad_func = lambda: weight.main_grad
            ctx.input_quantizer, ctx.grad_output_quantizer = input_quantizer, grad_output_quantizer
            ctx.is_first_microbatch = is_first_microbatch
            ctx.fuse_wgrad_accumulation = fuse_wgrad_accumulation
            ctx.tp_group, ctx.sequence_parallel = tp_group, sequence_parallel
            ctx.activation_dtype, ctx.normalization = activation_dtype, normalization
            ctx.inp_shape = inp.shape
            ctx.reduces_fp8, ctx.due = reduces_fp8, due
        return out.view(-1, *inp.shape[1:-1], weight.shape[0]), new_workspace

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _grad_workspace: Any) -> tuple[Tensor | None, ...]:
        """Gradients of input, norm, weight and bias."""
        inputmat, weightmat, _, bias, ln_weight, ln_bias, ln_out, mean, rsigma = restore_from_func_ctx(ctx)
        grad = grad_output.reshape(-1, grad_output.shape[-1])
        db = bias_gradient(grad, bias)
        grad_mat: Operand = grad if ctx.grad_output_quantizer is None else ctx.grad_output_quantizer(grad)

        total, work = ln_out, None
        if ctx.sequence_parallel:
            total, work = gather_along_first_dim(ln_out, ctx.tp_group, is_async=True)
        dgrad = general_gemm(weightmat, grad_mat, ctx.activation_dtype, layout="NN")
        strike(ctx.due, "dgrad", dgrad)
        communicate = reduce_scatter_along_first_dim if ctx.sequence_parallel else allreduce
        dgrad, dgrad_work = communicate(dgrad, ctx.tp_group, is_async=True)
        wait(work)
        if ctx.sequence_parallel and ctx.input_quantizer is not None:
            total = ctx.input_quantizer(total)
        dw = weight_gradient(total, grad_mat, ctx, ctx.due)
        wait(dgrad_work)

        is_rms = ctx.normalization == "RMSNorm"
        dx, d_ln_weight, d_ln_bias = norm_gradients(dgrad, inputmat, (mean, rsigma), ln_weight, ln_bias, is_rms)
        strike(ctx.due, "bwd", dx)
        if ctx.reduces_fp8:
            GlobalStateManager.reduce_and_update(forward=False)
        return dx.view(ctx.inp_shape), d_ln_weight, d_ln_bias, dw, None, db, None


class LayerNormColumnParallelLinear(ColumnParallelLinear):
    """The norm's parameters are those of the layer."""

    def __init__(self, input_size: int, output_size: int, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, **kwargs)
        self.layer_norm_weight = add_norm_parameter(self, "layer_norm_weight", input_size, 1.0)
        has_bias = self.config.normalization == "LayerNorm"
        self.layer_norm_bias = add_norm_parameter(self, "layer_norm_bias", input_size, 0.0) if has_bias else None

    def forward(self, inp: Tensor) -> tuple[Tensor, Tensor | None]:
        """[s, b, in] to [s, b, out]; the sequence is gathered."""
        reduces_fp8 = self.prepare_forward()
        is_grad_enabled = torch.is_grad_enabled()
        non_tensor_args = (
            self.config.layernorm_epsilon,
            self.is_first_microbatch,
            options.FUSED_WGRAD,
            self.quantizers(),
            self.tp_group,
            self.config.sequence_parallel,
            inp.dtype,
            self.config.normalization,
            reduces_fp8,
            self.due(),
        )
        call, context = (_LayerNormLinear.apply, ()) if is_grad_enabled else (_LayerNormLinear.forward, (None,))
        out, new_workspace = call(
            *context,
            inp,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.weight,
            self._fp8_workspaces.get("weight"),
            None if self.returns_bias else self.bias,
            non_tensor_args,
        )
        if new_workspace is not None:
            self._fp8_workspaces["weight"] = new_workspace
        self.is_first_microbatch = False
        return out, self.bias if self.returns_bias else None


def add_norm_parameter(module: OpaqueModule, name: str, size: int, value: float) -> Tensor:
    """A parameter that every tensor-parallel rank has, and of whose gradient it has a part."""
    parameter = module.add_vector(name, size, value)
    parameter.sequence_parallel = module.config.sequence_parallel  # type: ignore[attr-defined]
    return parameter


class _LayerNorm(torch.autograd.Function):
    """The norm alone."""

    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, ln_weight: Tensor, ln_bias: Tensor | None, eps: float, rms: bool, due: str
    ) -> Tensor:
        """As in front of a router."""
        inputmat = inp.reshape(-1, inp.shape[-1])
        out, mean, rsigma = normalize(inputmat, ln_weight, ln_bias, eps, rms)
        strike(due, "fwd", out)
        if ctx is not None:
            ctx.save_for_backward(inputmat, ln_weight, ln_bias, mean, rsigma)
            ctx.rms, ctx.due = rms, due
        return out.view(inp.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input and parameters."""
        inputmat, ln_weight, ln_bias, mean, rsigma = ctx.saved_tensors
        grad = grad_output.reshape(-1, grad_output.shape[-1])
        dx, dw, db = norm_gradients(grad, inputmat, (mean, rsigma), ln_weight, ln_bias, ctx.rms)
        strike(ctx.due, "bwd", dx)
        strike(ctx.due, "wgrad", dw)
        return dx.view(grad_output.shape), dw, db, None, None, None


class Norm(OpaqueModule):
    """LayerNorm or RMSNorm, as the model has it."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(config)
        self.eps = eps
        self.weight = add_norm_parameter(self, "weight", hidden_size, 1.0)
        has_bias = config.normalization == "LayerNorm"
        self.bias = add_norm_parameter(self, "bias", hidden_size, 0.0) if has_bias else None

    def forward(self, inp: Tensor) -> Tensor:
        """Norm the last dim."""
        call, context = (_LayerNorm.apply, ()) if torch.is_grad_enabled() else (_LayerNorm.forward, (None,))
        rms = self.config.normalization == "RMSNorm"
        normed: Tensor = call(*context, inp, self.weight, self.bias, self.eps, rms, self.due())
        return normed
