"""The products of all experts of a rank in one Function.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/module/grouped_linear.py, _GroupedLinear; Megatron's
TEGroupedMLP is built of two of them
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.extensions.transformer_engine import _set_expert_parameter_attributes
from megatron.core.tensor_parallel.layers import _initialize_affine_weight_gpu
from torch import Tensor
from torch.nn import Parameter

from tests.opaque import options
from tests.opaque.base import OpaqueModule
from tests.opaque.faults import strike
from tests.opaque.gemm import general_gemm
from tests.opaque.linear import weight_gradient


class _GroupedLinear(torch.autograd.Function):
    """Rows sorted by expert, each times the weight of its expert."""

    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, m_splits: list[int], non_tensor_args: tuple[Any, ...], *weights: Tensor
    ) -> Tensor:
        """[m, in] to [m, out]."""
        is_first_microbatch, fuse_wgrad_accumulation, activation_dtype, due = non_tensor_args
        inputmats = inp.reshape(-1, inp.shape[-1]).split(m_splits)
        out = torch.empty((inp.shape[0], weights[0].shape[0]), dtype=activation_dtype, device=inp.device)
        for weight, inputmat, part in zip(weights, inputmats, out.split(m_splits), strict=True):
            if inputmat.shape[0]:
                general_gemm(weight, inputmat, activation_dtype, out=part)
        if inp.shape[0]:
            strike(due, "fwd", out)

        if ctx is not None:
            ctx.save_for_backward(*inputmats, *weights)
            ctx.weights = [
                SimpleNamespace(
                    origin_weight_ref=weakref.ref(weight),
                    main_grad_func=lambda weight=weight: weight.main_grad,
                    fuse_wgrad_accumulation=fuse_wgrad_accumulation,
                    is_first_microbatch=is_first_microbatch,
                    activation_dtype=activation_dtype,
                )
                for weight in weights
            ]
            ctx.m_splits, ctx.activation_dtype, ctx.due = m_splits, activation_dtype, due
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """An expert without tokens has a gradient of zeros."""
        saved = ctx.saved_tensors
        inputmats, weights = saved[: len(ctx.weights)], saved[len(ctx.weights) :]
        grads = grad_output.reshape(-1, grad_output.shape[-1]).split(ctx.m_splits)
        shape = (grad_output.shape[0], weights[0].shape[1])
        dgrad = torch.empty(shape, dtype=ctx.activation_dtype, device=grad_output.device)
        for weight, grad, part in zip(weights, grads, dgrad.split(ctx.m_splits), strict=True):
            if grad.shape[0]:
                general_gemm(weight, grad, ctx.activation_dtype, layout="NN", out=part)
        if grad_output.shape[0]:
            strike(ctx.due, "bwd", dgrad)
        of_weights = [
            weight_gradient(inputmat, grad, args, ctx.due if number == 0 else "")
            for number, (inputmat, grad, args) in enumerate(zip(inputmats, grads, ctx.weights, strict=True))
        ]
        return dgrad, None, None, *of_weights


class GroupedLinear(OpaqueModule):
    """As Megatron calls it: rows and how many there are of each expert."""

    parallel_mode = ""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[Tensor], Any],
        bias: bool,
        pg_collection: Any,
        **_: Any,
    ) -> None:
        assert not bias and pg_collection.expt_tp.size() == 1
        super().__init__(config)
        self.num_gemms = num_gemms
        self.expert_group = pg_collection.expt_tp
        device = torch.cuda.current_device()
        for number in range(num_gemms):
            weight = Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype, device=device))
            dim = 0 if self.parallel_mode == "column" else 1
            _initialize_affine_weight_gpu(weight, init_method, partition_dim=dim, is_expert=True)
            self.register_parameter(f"weight{number}", weight)
        use_expert_groups = config.expert_model_parallel_size > 1
        _set_expert_parameter_attributes(self, self.parallel_mode, use_expert_groups)

    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> tuple[Tensor, None]:
        """[m, in] to [m, out]."""
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        non_tensor_args = (self.is_first_microbatch, options.FUSED_WGRAD, inp.dtype, self.due())
        call, context = (_GroupedLinear.apply, ()) if torch.is_grad_enabled() else (_GroupedLinear.forward, (None,))
        out = call(*context, inp, list(m_splits), non_tensor_args, *weights)
        self.is_first_microbatch = False
        return out, None


class ColumnParallelGroupedLinear(GroupedLinear):
    """The first of an expert's two."""

    parallel_mode = "column"


class RowParallelGroupedLinear(GroupedLinear):
    """The second one."""

    parallel_mode = "row"
