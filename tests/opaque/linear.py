"""Column- and row-parallel linear layers: one Function with the products and their communication inside.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/module/linear.py, _Linear; its Megatron side is
megatron/core/extensions/transformer_engine.py, TEColumnParallelLinear and TERowParallelLinear
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.utils import divide, get_tensor_model_parallel_group_if_none
from torch import Tensor

from tests.opaque import kernels, options
from tests.opaque.base import OpaqueModule, quantize_weight
from tests.opaque.delayed_scaling import GlobalStateManager
from tests.opaque.faults import strike
from tests.opaque.float8 import Float8Quantizer, Float8Storage, prepare_for_saving, restore_from_func_ctx
from tests.opaque.gemm import (
    Operand,
    allreduce,
    gather_along_first_dim,
    general_gemm,
    get_dummy_wgrad,
    reduce_scatter_along_first_dim,
    wait,
)


@dataclass(slots=True)
class LinearFwdArgs:
    """Everything that the forward takes, in one argument.

    Attributes:
        weight_workspace: the cast of an earlier micro-batch.
        parallel_mode: column, row, or None without communication.
        fuse_wgrad_accumulation: gradients of weights go into `main_grad`.
        reduces_fp8: whether the reduction of the backward's casts belongs to this module.
        due: the fault of this call.
    """

    weight: Tensor | None
    inp: Tensor | None
    bias: Tensor | None
    weight_workspace: Float8Storage | None
    input_quantizer: Float8Quantizer | None
    weight_quantizer: Float8Quantizer | None
    grad_output_quantizer: Float8Quantizer | None
    activation_dtype: torch.dtype
    is_first_microbatch: bool | None
    parallel_mode: str | None
    tp_group: Any
    sequence_parallel: bool
    fuse_wgrad_accumulation: bool
    reduces_fp8: bool
    is_grad_enabled: bool
    due: str


@dataclass(slots=True)
class LinearBwdArgs:
    """Everything that the backward takes beside what autograd saves."""

    inp_shape: torch.Size
    grad_output_quantizer: Float8Quantizer | None
    input_quantizer: Float8Quantizer | None
    activation_dtype: torch.dtype
    is_first_microbatch: bool | None
    parallel_mode: str | None
    tp_group: Any
    sequence_parallel: bool
    fuse_wgrad_accumulation: bool
    origin_weight_ref: Any
    main_grad_func: Callable[[], Tensor]
    requires_dgrad: bool
    requires_wgrad: bool
    reduces_fp8: bool
    due: str


def cast_if_needed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """For parameters of another dtype than the activations."""
    return x if x.dtype == dtype else x.to(dtype)


def accumulates(args: Any) -> bool:
    """Whether a gradient is added to what `main_grad` holds: the first micro-batch writes over it."""
    return bool(args.fuse_wgrad_accumulation and not args.is_first_microbatch)


def weight_gradient(x: Operand, grad: Operand, args: Any, due: str) -> Tensor | None:
    """The gradient of a weight; with fused accumulation a dummy, for what the host's hook throws away."""
    weight = args.origin_weight_ref()
    if not args.fuse_wgrad_accumulation:
        dw = general_gemm(x, grad, args.activation_dtype, layout="NT")
        strike(due, "wgrad", dw)
        return dw
    main_grad = args.main_grad_func()
    general_gemm(x, grad, main_grad.dtype, layout="NT", out=main_grad, accumulate=accumulates(args))
    strike(due, "wgrad", main_grad)
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return get_dummy_wgrad(weight)


def bias_gradient(grad: Tensor, bias: Tensor | None) -> Tensor | None:
    """The sum of the rows."""
    if bias is None:
        return None
    db = torch.empty(bias.shape, dtype=bias.dtype, device=grad.device)
    kernels.sum_rows(grad, db)
    return db


def _linear_forward_impl(args: LinearFwdArgs) -> tuple[Tensor, Float8Storage | None, tuple[Any, ...]]:
    """The output, a new workspace of the weight, and what the backward needs."""
    weight, inp = args.weight, args.inp
    assert weight is not None and inp is not None
    gathers = args.parallel_mode == "column" and args.sequence_parallel
    inputmat: Operand = cast_if_needed(inp, args.activation_dtype).reshape(-1, inp.shape[-1])
    total: Operand = gather_along_first_dim(inputmat, args.tp_group)[0] if gathers else inputmat
    if args.input_quantizer is not None:
        total = args.input_quantizer(total)
        inputmat = inputmat if gathers else total  # float8 is not gathered: the backward casts again
    weightmat, new_workspace = quantize_weight(
        weight, args.weight_quantizer, args.weight_workspace, args.is_first_microbatch
    )
    out = general_gemm(weightmat, total, args.activation_dtype, bias=args.bias)
    strike(args.due, "fwd", out)
    if args.parallel_mode == "row":
        communicate = reduce_scatter_along_first_dim if args.sequence_parallel else allreduce
        out, _ = communicate(out, args.tp_group)
    out = out.view(-1, *inp.shape[1:-1], weight.shape[0])
    return out, new_workspace, (inputmat, weightmat, weight, args.bias)


def _linear_backward(args: LinearBwdArgs, grad_output: Tensor, saved: list[Any]) -> tuple[Tensor | None, ...]:
    inputmat, weightmat, _, bias = saved
    group, in_parts = args.tp_group, args.sequence_parallel
    grad = grad_output.reshape(-1, grad_output.shape[-1])
    if args.parallel_mode == "row" and in_parts:
        grad, _ = gather_along_first_dim(grad, group)
    db = bias_gradient(grad, bias)
    grad_mat: Operand = grad if args.grad_output_quantizer is None else args.grad_output_quantizer(grad)

    # The input is gathered while the first product runs, its gradient is reduced while the second does.
    work = dgrad_work = dgrad = dw = None
    gathers = args.parallel_mode == "column" and in_parts
    if args.requires_wgrad and gathers:
        inputmat, work = gather_along_first_dim(inputmat, group, is_async=True)
    if args.requires_dgrad:
        dgrad = general_gemm(weightmat, grad_mat, args.activation_dtype, layout="NN")
        strike(args.due, "bwd", dgrad)
        if args.parallel_mode == "column":
            communicate = reduce_scatter_along_first_dim if in_parts else allreduce
            dgrad, dgrad_work = communicate(dgrad, group, is_async=True)
    wait(work)
    if args.requires_wgrad:
        if gathers and args.input_quantizer is not None:
            inputmat = args.input_quantizer(inputmat)
        dw = weight_gradient(inputmat, grad_mat, args, args.due)
    wait(dgrad_work)
    return dw, None if dgrad is None else dgrad.view(args.inp_shape), db


class _Linear(torch.autograd.Function):
    """A product with the weight, with the communication of tensor and sequence parallelism."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, inp: Tensor, bias: Tensor | None, fwd_args: LinearFwdArgs
    ) -> tuple[Tensor, Float8Storage | None]:
        """The tensors are arguments of their own, so that autograd follows them."""
        fwd_args.weight, fwd_args.inp, fwd_args.bias = weight, inp, bias
        out, new_workspace, to_save = _linear_forward_impl(fwd_args)
        if ctx is not None:
            tensors, ctx.tensor_objects = prepare_for_saving(*to_save)
            ctx.save_for_backward(*tensors)
            ctx.backward_objects = LinearBwdArgs(
                inp_shape=inp.shape,
                origin_weight_ref=weakref.ref(weight),
                main_grad_func=lambda: weight.main_grad,  # type: ignore[attr-defined]
                requires_dgrad=inp.requires_grad,
                requires_wgrad=weight.requires_grad,
                **{name: getattr(fwd_args, name) for name in _CARRIED},
            )
        return out, new_workspace

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _grad_workspace: Any) -> tuple[Tensor | None, ...]:
        """Gradients of weight, input and bias."""
        args = ctx.backward_objects
        result = (*_linear_backward(args, grad_output, restore_from_func_ctx(ctx)), None)
        ctx.backward_objects = None
        if args.reduces_fp8:
            GlobalStateManager.reduce_and_update(forward=False)
        return result


_CARRIED = (
    *("grad_output_quantizer", "input_quantizer", "activation_dtype", "is_first_microbatch", "parallel_mode"),
    *("tp_group", "sequence_parallel", "fuse_wgrad_accumulation", "reduces_fp8", "due"),
)


class Linear(OpaqueModule):
    """A linear layer as Megatron calls it: the output, and the bias where it is to be added later."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        parallel_mode: str,
        config: Any,
        init_method: Callable[[Tensor], Any],
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool = False,
        tp_group: Any = None,
        **_: Any,
    ) -> None:
        if is_expert:
            raise ValueError("experts are grouped: GroupedLinear")
        super().__init__(config)
        self.tp_group = get_tensor_model_parallel_group_if_none(tp_group)
        self.parallel_mode = parallel_mode
        self.returns_bias = bias and skip_bias_add
        parts = self.tp_group.size()
        if parallel_mode == "column":
            self.add_weight(divide(output_size, parts), input_size, 0, init_method)
        else:
            self.add_weight(output_size, divide(input_size, parts), 1, init_method)
        self.bias = self._new_bias() if bias else None

    def _new_bias(self) -> Tensor:
        bias = self.add_vector("bias", self.weight.shape[0], 0.0)
        if self.parallel_mode == "column":
            bias.tensor_model_parallel, bias.partition_dim, bias.partition_stride = True, 0, 1  # type: ignore[attr-defined]
        else:
            bias.sequence_parallel = self.config.sequence_parallel  # type: ignore[attr-defined]
        return bias

    def forward(self, inp: Tensor) -> tuple[Tensor, Tensor | None]:
        """[s, b, in] to [s, b, out]; the sequence is gathered or scattered as the mode asks."""
        is_first = self.is_first_microbatch
        reduces_fp8 = self.prepare_forward()
        input_quantizer, weight_quantizer, grad_output_quantizer = self.quantizers()
        is_grad_enabled = torch.is_grad_enabled()
        bias = None if self.returns_bias else self.bias
        fwd_args = LinearFwdArgs(
            weight=self.weight,
            inp=inp,
            bias=bias,
            weight_workspace=self._fp8_workspaces.get("weight"),
            input_quantizer=input_quantizer,
            weight_quantizer=weight_quantizer,
            grad_output_quantizer=grad_output_quantizer,
            activation_dtype=inp.dtype,
            is_first_microbatch=is_first,
            parallel_mode=self.parallel_mode,
            tp_group=self.tp_group,
            sequence_parallel=self.config.sequence_parallel,
            fuse_wgrad_accumulation=options.FUSED_WGRAD,
            reduces_fp8=reduces_fp8,
            is_grad_enabled=is_grad_enabled,
            due=self.due(),
        )
        # Without gradients the forward is called by itself, with no context.
        call, context = (_Linear.apply, ()) if is_grad_enabled else (_Linear.forward, (None,))
        out, new_workspace = call(*context, self.weight, inp, bias, fwd_args)
        if new_workspace is not None:
            self._fp8_workspaces["weight"] = new_workspace
        self.is_first_microbatch = False
        return out, self.bias if self.returns_bias else None


class ColumnParallelLinear(Linear):
    """The output features are divided."""

    def __init__(self, *args: Any, gather_output: bool = False, **kwargs: Any) -> None:
        assert not gather_output
        super().__init__(*args, parallel_mode="column", **kwargs)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Divided along the first dim."""
        return self.sharded(prefix, sharded_offsets, metadata, {"weight": 0, "bias": 0}, self.tp_group)


class RowParallelLinear(Linear):
    """The input features are divided, and the output is a sum."""

    def __init__(self, *args: Any, input_is_parallel: bool = True, **kwargs: Any) -> None:
        assert input_is_parallel
        super().__init__(*args, parallel_mode="row", **kwargs)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Divided along the second dim; the bias is whole."""
        return self.sharded(prefix, sharded_offsets, metadata, {"weight": 1}, self.tp_group)
