"""Script of `test_trace.py`: faults planted in real operators, each step traced at its decision point and then skipped.

FAULTS says what, "kind:rank:layer:microbatch" per step, the first step healthy; a rank "-" means all. Every micro-batch
that is traced is traced twice, the second time with a close look at what the first found. What each rank saw goes to
`trace{STEP}_{RANK}.json` in TRACES_DIR, and whether the traced passes were exact to `exact{RANK}.json`.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.optimizer import optimizer as optimizers
from megatron.core.pipeline_parallel import schedules
from torch import Tensor

from megatron_nanguard.cpurun import pretrain_gpt
from megatron_nanguard.device import training_device
from megatron_nanguard.megatron_api.model_chunks import layer_number
from megatron_nanguard.megatron_api.schedules import intercept_steps
from megatron_nanguard.parameters.global_names import name_modules, name_parameters
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.trace import RankTrace
from megatron_nanguard.replay.in_place import DecisionPoint, replay
from megatron_nanguard.replay.step_recorder import RecordedCall, StepRecorder
from megatron_nanguard.sentinel.losses import Losses
from megatron_nanguard.tracing.tracer import Tracer


class Fault(NamedTuple):
    """What goes wrong, and where."""

    kind: str
    rank: str
    layer: int
    microbatch: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        """From "kind:rank:layer:microbatch"; the layer counts from 0 over the whole model."""
        kind, rank, layer, microbatch = text.split(":")
        return cls(kind, rank, int(layer), int(microbatch))


class NanBackward(torch.autograd.Function):
    """Identity whose backward takes the log of a negative number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.log(-grad.abs() - 1.0)


def log_of_negative(x: Tensor) -> Tensor:
    """NaN in the forward."""
    return x + torch.log(-x.float().abs() - 1).to(x.dtype)


def clamped_exp(x: Tensor) -> Tensor:
    """Inf in the forward, clamped there, and Inf times 0 in the backward."""
    return x + (torch.exp(x.float() + 200.0).clamp(max=1.0) * 1e-3).to(x.dtype)


def masked(x: Tensor) -> Tensor:
    """A healthy mask."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[..., 0] = True
    return x + torch.softmax(x.float().masked_fill(mask, -math.inf), -1).to(x.dtype) * 1e-3


MARKER = "marker"
"""No fault, but fresh memory is filled with a marker in the traced pass."""

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": log_of_negative,
    "backward": NanBackward.apply,
    "exp": clamped_exp,
    "mask": masked,
    MARKER: lambda x: x,
}


class Host:
    """The step loop of Megatron, with a fault per step and a decision after it."""

    def __init__(self) -> None:
        self.faults = [None, *map(Fault.parse, os.environ["FAULTS"].split(";"))]
        self.recorder: StepRecorder | None = None
        self.chunks: list[Any] = []
        self.step = self.depth = 0
        self.microbatch: int | None = None
        self.exact: list[list[str]] = []

    @property
    def fault(self) -> Fault | None:
        return self.faults[self.step] if self.step < len(self.faults) else None

    def schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward_backward(**kwargs: Any) -> Any:
            if kwargs.get("forward_only"):
                return original(**kwargs)
            if self.recorder is None:
                model = kwargs["model"]
                self.chunks = model if isinstance(model, list) else [model]
                self.recorder = StepRecorder(self.chunks, training_device())
                self.plant()
            with intercept_steps(self.chunks, self.at):
                return original(**self.recorder.open(original, kwargs))

        return forward_backward

    def prepare_grads(self, original: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(original)
        def prepare(optimizer: Any, *args: Any, **kwargs: Any) -> bool:
            self.depth += 1
            try:
                if self.depth > 1:
                    return original(optimizer, *args, **kwargs)
                fault = self.decide()
                found_inf = original(optimizer, *args, **kwargs)
                return found_inf or fault is not None
            finally:
                self.depth -= 1

        return prepare

    def decide(self) -> Fault | None:
        """Trace the fault of this step."""
        assert self.recorder is not None
        call, fault = self.recorder.call, self.fault
        assert call is not None
        if fault is not None:
            point = DecisionPoint.take(call)
            first = self.traced(call, point, fault, frozenset())
            trace = self.traced(call, point, fault, frozenset(origin.event for origin in first.origins))
            assert not point.put_back()
            path = Path(os.environ["TRACES_DIR"], f"trace{self.step}_{dist.get_rank()}.json")
            path.write_bytes(to_json(trace))
        self.recorder.close()
        self.step += 1
        return fault

    def traced(self, call: RecordedCall, point: DecisionPoint, fault: Fault, probe: frozenset[int]) -> RankTrace:
        tracer = Tracer(
            self.chunks,
            {module: name for name, module in name_modules(self.chunks).items()},
            {named.param: named.name for named in name_parameters(self.chunks)},
            dist.get_rank(),
            fault.microbatch,
            marker_fill=fault.kind == MARKER,
            probed_events=probe,
        )

        @contextmanager
        def at(microbatch: int | None, chunk: int, in_backward: bool) -> Iterator[None]:
            with self.at(microbatch, chunk, in_backward), tracer.at(microbatch, chunk, in_backward):
                yield

        heard = Losses(tracer.add_loss).listen(call.kwargs["forward_step_func"])
        call = replace(call, kwargs={**call.kwargs, "forward_step_func": heard})
        result = replay(call, during=tracer, at=at, after_backward=tracer.after_backward)
        tracer.finish()
        self.exact.append(list(point.compare(result).differs))
        return tracer.summarize(f"rank{dist.get_rank()}")

    @contextmanager
    def at(self, microbatch: int | None, chunk: int, in_backward: bool) -> Iterator[None]:
        """Remember the micro-batch whose step runs."""
        self.microbatch = microbatch
        yield

    def plant(self) -> None:
        """The output of every layer's MLP passes through the fault of the step, if it is meant."""
        for chunk in self.chunks:
            for module in chunk.modules():
                if layer_number(module) is not None and "mlp" in module._modules:
                    module.mlp.forward = self.planted(module.mlp.forward, layer_number(module))

    def planted(self, forward: Callable[..., Any], number: int | None) -> Callable[..., Any]:
        def planted_forward(*args: Any, **kwargs: Any) -> Any:
            out, *rest = forward(*args, **kwargs)
            fault = self.fault
            mine = fault is not None and fault.rank in ("-", str(dist.get_rank()))
            if fault is not None and mine and (number, self.microbatch) == (fault.layer + 1, fault.microbatch):
                out = KINDS[fault.kind](out)
            return out, *rest

        return planted_forward


host = Host()
for name in [name for name in vars(schedules) if name.startswith("forward_backward_")]:
    setattr(schedules, name, host.schedule(getattr(schedules, name)))
for cls in (optimizers.FP32Optimizer, optimizers.MixedPrecisionOptimizer, optimizers.ChainedOptimizer):
    cls.prepare_grads = host.prepare_grads(cls.__dict__["prepare_grads"])
pretrain_gpt.main()
Path(os.environ["TRACES_DIR"], f"exact{os.environ['RANK']}.json").write_text(json.dumps(host.exact))
