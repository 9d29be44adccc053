"""Script: train like `pretrain_gpt.py` with faults in real operators of the model, which fire again in a replay.

FAULTS is "step=kind:rank:layer:submodule:microbatch;..."; the layer counts from 0 over the whole model, "-" means all
ranks, layers or micro-batches, and there may be several steps and ranks, "2+3". With END_STATE_DIR set the run ends as
`end_state.py` does. With GRADIENTS_DIR set each rank writes there what its gradient buffers held after every step, as
digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import megatron.training.training as host
import torch
import torch.distributed as dist
from megatron.core import mpu
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.cpurun import pretrain_gpt
from tests.ranks.microbatches import Forwards, is_in_backward

RANK = os.environ["RANK"]
ALL = "-"
DEEPER_THAN_THE_ENGINE_NESTS = 70
"""Backwards inside of each other; from 60 on another thread goes on."""


@dataclass
class Fault:
    """What goes wrong, and where.

    Attributes:
        has_fired: what a transient fault remembers.
    """

    steps: list[str]
    kind: str
    ranks: list[str]
    layer: str
    submodule: str
    microbatch: str
    has_fired: bool = field(default=False)

    @classmethod
    def parse(cls, text: str) -> Fault:
        steps, what = text.split("=")
        kind, ranks, *rest = what.split(":")
        return cls(steps.split("+"), kind, ranks.split("+"), *rest)

    def is_here(self, layer: int) -> bool:
        return bool({ALL, RANK} & {*self.ranks}) and self.layer in (ALL, str(layer))

    def is_due(self, microbatch: int) -> bool:
        step = host.get_args().curr_iteration + 1
        return str(step) in self.steps and self.microbatch in (ALL, str(microbatch))


# What goes wrong ----------------------------------------------------------------------------------------------------


class LogOfNegative(torch.autograd.Function):
    """Identity; in the backward the first element becomes the log of a negative number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        spoiled = grad.clone()
        spoiled.view(-1)[:1] = torch.log(-grad.reshape(-1)[:1].abs() - 1)
        return spoiled


def forward_log(x: Tensor) -> Tensor:
    """A term of weight 0."""
    return x + 0 * torch.log(-x.abs() - 1)


def exp_clamp(x: Tensor) -> Tensor:
    """Too large, cut off in the forward; its gradient is 0 times Inf."""
    return x + (torch.exp(x.float() + 200).clamp(max=1) * 1e-3).to(x.dtype)


def masked_row(x: Tensor) -> Tensor:
    """A softmax over nothing in the first row."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[0] = True
    return x + 0 * torch.softmax(x.masked_fill(mask, -math.inf), -1)


def healthy_mask(x: Tensor) -> Tensor:
    """A softmax that leaves the first column out."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[..., 0] = True
    return x + 0 * torch.softmax(x.masked_fill(mask, -math.inf), -1)


def collective_overflow(x: Tensor) -> Tensor:
    """Finite on every tensor-parallel rank, beyond fp16 in their sum."""
    total = torch.full((4,), 4e4, dtype=torch.float16)
    dist.all_reduce(total, group=mpu.get_tensor_model_parallel_group())
    return x + 0 * total.sum().to(x.dtype)


class Nested(torch.autograd.Function):
    """A backward that runs a backward, as often as told; the innermost computes the output again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor], depth: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.change, ctx.depth = change, depth
        with torch.no_grad():
            return change(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        assert ctx.depth or threading.current_thread() is not threading.main_thread()
        with torch.enable_grad():
            output = Nested.apply(x, ctx.change, ctx.depth - 1) if ctx.depth else ctx.change(x)
        torch.autograd.backward(output, grad)
        return x.grad, None, None


def deep(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same at the bottom of a deep stack of backwards."""
    return lambda x: Nested.apply(x, change, DEEPER_THAN_THE_ENGINE_NESTS)


OF_OUTPUT: dict[str, Callable[[Tensor], Tensor]] = {
    "forward_log": forward_log,
    "transient": forward_log,
    "backward_log": LogOfNegative.apply,
    "exp_clamp": exp_clamp,
    "masked_row": masked_row,
    "healthy_mask": healthy_mask,
    "collective_overflow": collective_overflow,
    "deep_exp": deep(exp_clamp),
    "deep_log": deep(LogOfNegative.apply),
}


def to_partner(logits: Tensor) -> Tensor:
    """`partner`, of a router: every token goes to the experts of one other rank, whatever it holds."""
    size, rank = mpu.get_expert_model_parallel_world_size(), mpu.get_expert_model_parallel_rank()
    owners = torch.arange(logits.shape[-1]) // (logits.shape[-1] // size)
    return torch.where(owners == rank ^ 1, logits, -1e4)


# Where --------------------------------------------------------------------------------------------------------------


class Spoiled:
    """Stands for the forward of a module."""

    def __init__(self, module: Module, faults: Sequence[Fault], forwards: Forwards) -> None:
        self.module, self.faults, self.forwards = module, faults, forwards
        self.forward = module.forward
        self.to_recompute: deque[int] = deque()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        microbatch = self._microbatch()
        due = [fault for fault in self.faults if fault.is_due(microbatch)]
        if any(fault.kind == "wgrad" for fault in due):
            # Found before the parameter of that name, which is left alone.
            self.module.__dict__["weight"] = LogOfNegative.apply(self.module._parameters["weight"])
        if any(fault.kind == "partner" for fault in due):
            gating = self.module.gating
            self.module.__dict__["gating"] = lambda *args, **kwargs: to_partner(gating(*args, **kwargs))
        output = self.forward(*args, **kwargs)
        self.module.__dict__.pop("weight", None)
        self.module.__dict__.pop("gating", None)
        for fault in due:
            if fault.kind in OF_OUTPUT and not (fault.kind == "transient" and fault.has_fired):
                fault.has_fired = True
                output = changed(output, OF_OUTPUT[fault.kind])
        return output

    def _microbatch(self) -> int:
        if is_in_backward():
            return self.to_recompute.popleft()
        if not torch.is_grad_enabled():
            self.to_recompute.append(self.forwards.microbatch)
        return self.forwards.microbatch


def changed(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The output with its first tensor changed; the rest is a bias or None."""
    if isinstance(output, Tensor):
        return change(output)
    first, *rest = output
    return (change(first), *rest)


def plant(chunks: Sequence[Module], faults: Sequence[Fault]) -> None:
    """Put the faults of this rank where they belong."""
    for chunk in chunks:
        forwards = Forwards(chunk)
        for layer in [module for module in chunk.modules() if hasattr(module, "layer_number")]:
            if "self_attention" in layer._modules:
                spoil(layer, [fault for fault in faults if fault.is_here(layer.layer_number - 1)], forwards)


def spoil(layer: Module, faults: Sequence[Fault], forwards: Forwards) -> None:
    for path in {fault.submodule for fault in faults}:
        module = layer.get_submodule(path)
        here = [fault for fault in faults if fault.submodule == path]
        module.forward = Spoiled(module, here, forwards)  # type: ignore[method-assign]
        weights.extend((fault, module) for fault in here if fault.kind == "nan_weight")


# The run ------------------------------------------------------------------------------------------------------------

weights: list[tuple[Fault, Module]] = []
gradients: list[str] = []


def planted(train: Callable[..., Any]) -> Callable[..., Any]:
    """Plant, then train."""

    def training(forward_step: Any, chunks: Sequence[Module], *args: Any, **kwargs: Any) -> Any:
        plant(chunks, [Fault.parse(text) for text in filter(None, os.environ["FAULTS"].split(";"))])
        return train(forward_step, chunks, *args, **kwargs)

    return training


def told(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Spoil weights before a step, and look at the gradients after it."""

    def step(*args: Any, **kwargs: Any) -> Any:
        for fault, module in weights:
            if fault.is_due(0):
                module.weight.data.view(-1)[0] = math.nan
        returned = train_step(*args, **kwargs)
        gradients.append(digest(args[2]))
        if "GRADIENTS_DIR" in os.environ:
            Path(os.environ["GRADIENTS_DIR"], f"gradients{RANK}.json").write_text(json.dumps(gradients))
        return returned

    return step


def digest(chunks: Sequence[Any]) -> str:
    """Equal exactly if every bit of the gradient buffers is."""
    found = hashlib.sha256()
    for buffer in buffers(chunks):
        found.update(buffer.grad_data.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def buffers(chunks: Sequence[Any]) -> Iterator[Any]:
    for chunk in chunks:
        yield from (*chunk.buffers, *chunk.expert_parallel_buffers)


host.train = planted(host.train)
host.train_step = told(host.train_step)
if "END_STATE_DIR" in os.environ:
    import tests.ranks.end_state  # noqa: F401  it trains when it is imported
else:
    pretrain_gpt.main()
