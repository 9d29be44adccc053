"""Script: train like `pretrain_gpt.py` with faults where they come into a run: a kernel, the wire, memory, data, state.

SEAMS is "step=name;step=name"; the names are functions of this file. What stands for hardware, another thread or a bad
cable writes through the address of a tensor, so that no dispatcher sees it. Faults of one rank are on rank 1 where
there are several.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import megatron.training.training as host
import torch
import torch.distributed as dist
from megatron.core import mpu
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from megatron_nanguard.cpurun import pretrain_gpt

SEAMS = dict(text.split("=") for text in filter(None, os.environ["SEAMS"].split(";")))
ACCUSED = os.environ["RANK"] == ("1" if os.environ["WORLD_SIZE"] != "1" else "0")
BAD_MICROBATCH = 1
MARKER = 0x7FC0DEAD
"""What the marker fill leaves in fresh float32 memory."""
BAD_ROW = 20
HEAD, ROWS = 2, range(5, 8)
IDLE_EXPERT = 5
LARGE = 2e4

has_fired: set[str] = set()
microbatch = -1


def is_due(name: str) -> bool:
    """Whether a fault belongs to the step that is running."""
    return SEAMS.get(str(host.get_args().curr_iteration + 1)) == name


def is_due_here(name: str) -> bool:
    """The same for a fault of one rank and one micro-batch."""
    return ACCUSED and microbatch == BAD_MICROBATCH and is_due(name)


def is_first_time(name: str) -> bool:
    """Whether it never happened before; a replay is another time."""
    is_first = name not in has_fired
    has_fired.add(name)
    return is_first


def spoil(tensor: Tensor, first: int = 0, count: int | None = None) -> None:
    """NaN in neighbouring elements, as something would write them that no dispatcher sees."""
    size, count = tensor.element_size(), tensor.numel() - first if count is None else count
    ctypes.memset(tensor.data_ptr() + first * size, 0xFF, count * size)


def counted(forward_step: Callable[..., Any]) -> Callable[..., Any]:
    """Which micro-batch runs; replays count on."""

    def step(*args: Any, **kwargs: Any) -> Any:
        global microbatch
        microbatch = (microbatch + 1) % get_num_microbatches()
        return forward_step(*args, **kwargs)

    return step


# A device -----------------------------------------------------------------------------------------------------------


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """The kernel of this rank's device: `kernel` is always wrong in its last tile, `kernel_once` was wrong once,
    `kernel_sometimes` is wrong every third time. In float64 it is right: that is no kernel of the device."""
    result = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    if x.dtype == torch.float64 or not ACCUSED:
        return result
    calls.append(None)
    once = is_due_here("kernel_once") and is_first_time("kernel_once")
    if once or is_due("kernel") or (is_due("kernel_sometimes") and len(calls) % 3 == 0):
        spoil(result, result.numel() - 64)
    return result


calls: list[None] = []


# The wire -----------------------------------------------------------------------------------------------------------


def recycled(communicate: Callable[..., Any]) -> Callable[..., Any]:
    """`receive_buffer`: what has arrived is overwritten before anybody reads it."""

    def exchange(*args: Any, **kwargs: Any) -> Any:
        returned = communicate(*args, **kwargs)
        # The receive of the second micro-batch comes before its forward step.
        if is_due("receive_buffer") and ACCUSED and microbatch == BAD_MICROBATCH - 1 and returned[0] is not None:
            spoil(returned[0], 0, 32)
        return returned

    return exchange


def flipped(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """`all_reduce`: the sum over the tensor-parallel group is bad on one rank."""

    def reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        returned = all_reduce(tensor, *args, **kwargs)
        is_model = tensor.dim() == 3 and kwargs.get("group") is mpu.get_tensor_model_parallel_group()
        if is_model and is_due_here("all_reduce"):
            spoil(tensor, 7, 1)
        return returned

    return reduce


def shuffled(all_to_all: Callable[..., Any]) -> Callable[..., Any]:
    """`all_to_all`: what comes from rank 0 arrives with a NaN, in the first exchange of the micro-batch."""

    def exchange(output: Tensor, *args: Any, **kwargs: Any) -> Any:
        returned = all_to_all(output, *args, **kwargs)
        if output.is_floating_point() and output.dim() == 2 and is_due_here("all_to_all"):
            spoil(output, 0, 64)
        return returned

    return exchange


# Memory -------------------------------------------------------------------------------------------------------------


def as_found(tensor: Tensor, name: str, first: int = 0) -> Tensor:
    """What fresh memory holds from an element on: a NaN the first time, later 0 or what somebody filled it with."""
    start = tensor.data_ptr() + first * tensor.element_size()
    if is_first_time(name):
        spoil(tensor, first)
    elif ctypes.c_uint32.from_address(start).value != MARKER:
        ctypes.memset(start, 0, (tensor.numel() - first) * tensor.element_size())
    return tensor


def half_written(x: Tensor) -> Tensor:
    """A kernel that writes the rows it has tokens for; the others are masked, too late."""
    out = torch.empty_like(x)
    out[:BAD_ROW].copy_(x[:BAD_ROW])
    as_found(out, "half_written", BAD_ROW * x[0].numel())
    mask = torch.zeros_like(x)
    return x + out * mask


class GroupedLinear(torch.autograd.Function):
    """`idle_expert`: a grouped kernel, of which an expert without tokens gets no gradient of its weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, num_tokens: int) -> Tensor:
        ctx.num_tokens = num_tokens
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad if ctx.num_tokens else as_found(torch.empty_like(grad), "idle_expert")), None


def grouped(linear: Any) -> Callable[..., Any]:
    forward = linear.forward

    def run(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_due_here("idle_expert"):
            # Found before the parameter of that name.
            linear.__dict__["weight"] = GroupedLinear.apply(linear._parameters["weight"], tokens.shape[0])
        returned = forward(tokens, *args, **kwargs)
        linear.__dict__.pop("weight", None)
        return returned

    return run


def avoiding(gating: Callable[..., Any]) -> Callable[..., Any]:
    """Logits with which no token goes to the idle expert."""

    def logits(*args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = gating(*args, **kwargs)
        is_idle = torch.arange(found.shape[-1]) == IDLE_EXPERT
        return found.masked_fill(is_idle, -1e4) if is_due("idle_expert") else found

    return logits


def too_early(start: Callable[..., Any]) -> Callable[..., Any]:
    """`early_bucket`: reduced before the last copy into it is complete, unless operators are slowed down."""

    def start_grad_sync(group: Any, *args: Any, **kwargs: Any) -> Any:
        if is_due("early_bucket") and ACCUSED and _get_current_dispatch_mode() is None:
            spoil(group.buckets[0].grad_data, group.buckets[0].grad_data.numel() - 4096)
        return start(group, *args, **kwargs)

    return start_grad_sync


def left(zero_grad_buffer: Callable[..., Any]) -> Callable[..., Any]:
    """`stale_bucket`: a part of the gradient buffer is never emptied, and held a NaN before."""

    def zero(chunk: Any) -> None:
        zero_grad_buffer(chunk)
        if is_due("stale_bucket") and ACCUSED:
            spoil(chunk.buffers[0].grad_data, 0, 8)

    return zero


# Data and loss ------------------------------------------------------------------------------------------------------


class Shared:
    """Stands for a data iterator whose last item another thread still writes into."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner

    def __next__(self) -> Any:
        item = next(self.inner)
        if is_due_here("nan_sample"):
            assert math.isnan(float(item["loss_mask"].sum()))
        if is_due_here("mutated") and is_first_time("mutated"):
            held.append(item["loss_mask"])
            thread = threading.Thread(target=spoil, args=(item["loss_mask"], 3, 1))
            thread.start()
            thread.join()
        return item


held: list[Tensor] = []


def fetched(get_batch: Callable[..., Any]) -> Callable[..., Any]:
    return lambda data_iterator, vp_stage: get_batch(Shared(data_iterator), vp_stage)


def sampled(getitem: Callable[..., Any]) -> Callable[..., Any]:
    """`nan_sample` and `all_masked`: the loss mask of the samples of one micro-batch."""

    def item(data: Any, index: int) -> Any:
        sample = getitem(data, index)
        args = host.get_args()
        step, place = divmod(int(index), args.global_batch_size)
        per_microbatch = args.micro_batch_size * mpu.get_data_parallel_world_size()
        name = SEAMS.get(str(step + 1))
        if ACCUSED and place // per_microbatch == BAD_MICROBATCH:
            if name == "all_masked":
                sample["loss_mask"].zero_()
            elif name == "nan_sample":
                sample["loss_mask"][5] = math.nan
        return sample

    return item


def unguarded_mean(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The mean over tokens that count, as one writes it first."""
    mask = loss_mask.view(-1)
    num_tokens = mask.sum()
    mean = torch.sum(output.view(-1) * mask) / num_tokens
    report = torch.stack([mean.detach() * num_tokens, num_tokens])
    return mean * num_tokens, num_tokens.detach().to(torch.int), {"lm loss": report}


def clipped_ratio(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A policy ratio that overflows where the mask is 0, and is clipped: fine in the forward, 0 times Inf backward."""
    losses, mask = output.view(-1), loss_mask.view(-1).clone()
    mask[::8] = 0
    log_ratio = losses - losses.detach() + 200 * (1 - mask)
    clipped = torch.min(torch.exp(log_ratio), torch.full_like(log_ratio, 1.2))
    loss, num_tokens = torch.sum(clipped * losses * mask), mask.sum()
    report = torch.stack([loss.detach(), num_tokens])
    return loss, num_tokens.detach().to(torch.int), {"lm loss": report}


class LargeGradient(torch.autograd.Function):
    """`large_gradient`: identity; its gradient fits fp16 at a low loss scale alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * LARGE


def with_metric(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A metric that is NaN, and that nothing depends on."""
    loss, num_tokens, report = trained_loss(loss_mask, output)
    return loss, num_tokens, {**report, "accuracy": torch.stack([torch.tensor(math.nan), num_tokens.float()])}


trained_loss = pretrain_gpt.loss_func
OTHER_LOSSES = {"all_masked": unguarded_mean, "clipped_ratio": clipped_ratio, "nan_metric": with_metric}


def loss_func(loss_mask: Tensor, output: Tensor) -> Any:
    chosen = next((loss for name, loss in OTHER_LOSSES.items() if is_due(name)), trained_loss)
    if chosen is clipped_ratio and not is_due_here("clipped_ratio"):
        chosen = trained_loss
    return chosen(loss_mask, output)


# A fused kernel -----------------------------------------------------------------------------------------------------


class FlashAttnFunc(torch.autograd.Function):
    """Stands for flash-attention; its backward kernel spoils some rows of the keys' gradient in one head."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool
    ) -> Tensor:
        weights = probabilities(q, k, softmax_scale)
        ctx.save_for_backward(q, k, v, weights)
        ctx.softmax_scale = softmax_scale
        return torch.einsum("bnst,btnh->bsnh", weights, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad_weights = torch.einsum("bsnh,btnh->bnst", grad, v)
        inner = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True)) * ctx.softmax_scale
        grad_key = torch.einsum("bnst,bsnh->btnh", inner, q).contiguous()
        for sample in range(grad_key.shape[0]):
            for row in ROWS:
                spoil(grad_key[sample, row, HEAD])
        grad_query, grad_value = (
            torch.einsum("bnst,btnh->bsnh", inner, k),
            torch.einsum("bnst,bsnh->btnh", weights, grad),
        )
        return grad_query, grad_key, grad_value, None, None, None


def probabilities(q: Tensor, k: Tensor, scale: float) -> Tensor:
    scores = torch.einsum("bsnh,btnh->bnst", q, k) * scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1)


def attention(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`fused_attention`: from [seq, batch, head, dim] to what flash-attention takes, and back."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_due("fused_attention"):
            return forward(query, key, value, *args, **kwargs)
        q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
        context = FlashAttnFunc.apply(q, k, v, 0.0, q.shape[-1] ** -0.5, True).transpose(0, 1)
        return context.reshape(*context.shape[:2], -1)

    return attend


# State --------------------------------------------------------------------------------------------------------------


def load(chunks: Sequence[Any], optimizer: Any) -> None:
    """`bad_load`: one shard of one tensor comes with a NaN from the checkpoint."""
    for chunk in chunks:
        state = chunk.state_dict()
        name = next(name for name in state if name.endswith("layers.2.mlp.linear_fc2.weight"))
        state[name] = state[name].clone()
        state[name].view(-1)[9] = math.nan
        chunk.load_state_dict(state)
    optimizer.reload_model_params()


def second_moment(chunks: Sequence[Any], optimizer: Any) -> None:
    """`bad_moment`: negative after a resume; the update of this step makes a NaN of it."""
    _, state = next((p, s) for p, s in leaf_of(optimizer).optimizer.state.items() if p.dim() == 2)
    state["exp_avg_sq"].view(-1)[3] = -1.0


def model_weight(chunks: Sequence[Any], optimizer: Any) -> None:
    """`bad_copy`: the model's weight is bad, the main parameter it was copied from is not."""
    next(p for p in chunks[0].parameters() if p.dim() == 2).data.view(-1)[3] = math.nan


def gathered(chunks: Sequence[Any], optimizer: Any) -> None:
    """`bad_gather`: of what the other rank owns and has gathered to all, one element arrived as a NaN."""
    spoil(chunks[0].buffers[0].param_data, 3, 1)


def leaf_of(optimizer: Any) -> Any:
    return getattr(optimizer, "chained_optimizers", [optimizer])[0]


BEFORE_A_STEP = {"bad_load": load, "bad_moment": second_moment, "bad_copy": model_weight, "bad_gather": gathered}


# The run ------------------------------------------------------------------------------------------------------------


def planted(train: Callable[..., Any]) -> Callable[..., Any]:
    def training(forward_step: Any, chunks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        layers = [module for module in chunks[0].modules() if hasattr(module, "self_attention")]
        core = layers[1].self_attention.core_attention
        core.forward = attention(core.forward)
        mlp = layers[1].mlp
        if hasattr(mlp, "experts"):
            mlp.router.gating = avoiding(mlp.router.gating)
            for expert in mlp.experts.local_experts:
                expert.linear_fc1.forward = grouped(expert.linear_fc1)
        mlp.forward = written(mlp.forward)
        return train(forward_step, chunks, *args, **kwargs)

    return training


def written(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        output, bias = forward(*args, **kwargs)
        if is_due_here("large_gradient"):
            output = LargeGradient.apply(output)
        return half_written(output) if is_due_here("half_written") else output, bias

    return run


def spoiled_first(train_step: Callable[..., Any]) -> Callable[..., Any]:
    def step(forward_step: Any, data: Any, chunks: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for name, spoil_state in BEFORE_A_STEP.items():
            if is_due(name) and ACCUSED:
                spoil_state(chunks, optimizer)
        return train_step(forward_step, data, chunks, optimizer, *args, **kwargs)

    return step


if any(name.startswith("kernel") for name in SEAMS.values()):
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("gelu", gelu, "CPU")
host.train = planted(host.train)
host.train_step = spoiled_first(host.train_step)
dist.all_reduce = flipped(dist.all_reduce)
dist.all_to_all_single = shuffled(dist.all_to_all_single)
P2PCommunicator._communicate = recycled(P2PCommunicator._communicate)
DistributedDataParallel.zero_grad_buffer = left(DistributedDataParallel.zero_grad_buffer)
_ParamAndGradBucketGroup.start_grad_sync = too_early(_ParamAndGradBucketGroup.start_grad_sync)
pretrain_gpt.WalkDataset.__getitem__ = sampled(pretrain_gpt.WalkDataset.__getitem__)
pretrain_gpt.get_batch = fetched(pretrain_gpt.get_batch)
pretrain_gpt.loss_func = loss_func
pretrain_gpt.forward_step = counted(pretrain_gpt.forward_step)
pretrain_gpt.main()
