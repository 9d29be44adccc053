"""Script of `test_replay.py`: `end_state.py` with replays at the decision point of some steps.

REPLAYS says what to do, "step: what, what; step: what": `plain` (the whole recipe) or the name of something that is
left out of it. Each replay starts from the decision point and is followed by a return to it. What came of them goes to
`replay{RANK}.json` in END_STATE_DIR.

LEAVE_OUT_AT_FETCH=1: items are recorded without copying them. CONSUMER=mutating: the forward step scales the loss mask
that it was given, in place. SPOILED=rank,step,microbatch: the gradient that enters the last MLP of that rank is NaN in
the backward of that micro-batch, in replays too.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.optimizer import optimizer as optimizers
from megatron.core.pipeline_parallel import schedules

from megatron_nanguard.cpurun import pretrain_gpt
from megatron_nanguard.device import Device, training_device
from megatron_nanguard.replay import data_iterators, in_place
from megatron_nanguard.replay.first_bad import FirstBad
from megatron_nanguard.replay.in_place import DecisionPoint, replay
from megatron_nanguard.replay.step_recorder import RecordedCall, StepRecorder
from megatron_nanguard.sentinel.gradient_norms import BeforeReduction

PLANS = dict(part.split(":") for part in os.environ["REPLAYS"].replace(" ", "").split(";"))

found: list[dict[str, Any]] = []


class Host:
    """The two places of Megatron that a replay hangs on."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recorder: StepRecorder | None = None
        self.before = BeforeReduction(per_parameter=True)
        self.step = 1
        self.depth = 0

    def schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record every call that trains."""

        @functools.wraps(original)
        def forward_backward(**kwargs: Any) -> Any:
            if kwargs.get("forward_only"):
                return original(**kwargs)
            model = kwargs["model"]
            if self.recorder is None:
                chunks = model if isinstance(model, list) else [model]
                self.recorder = StepRecorder(chunks, self.device)
                spoil(chunks)
            return original(**self.recorder.open(original, kwargs))

        return forward_backward

    def prepare_grads(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """Replay at the entry of the outermost call."""

        @functools.wraps(original)
        def prepare(optimizer: Any, *args: Any, **kwargs: Any) -> bool:
            self.depth += 1
            try:
                if self.depth == 1:
                    self.decide()
                return original(optimizer, *args, **kwargs)
            finally:
                self.depth -= 1

        return prepare

    def start_grad_sync(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Take the norms of buckets that are about to be reduced."""

        @functools.wraps(original)
        def start(group: Any, *args: Any, **kwargs: Any) -> Any:
            self.before.look(group, False)
            return original(group, *args, **kwargs)

        return start

    def decide(self) -> None:
        """Do what the plan says for this step."""
        assert self.recorder is not None
        call = self.recorder.call
        assert call is not None
        for what in filter(None, PLANS.get(str(self.step), "").split(",")):
            found.append({"step": self.step, "what": what, **replayed(call, what)})
        self.recorder.close()
        self.step += 1


def replayed(call: RecordedCall, what: str) -> dict[str, Any]:
    """One replay, and what it was like."""
    losses: list[Any] = sys.modules["tests.ranks.end_state"].losses
    num_losses = len(losses)
    point = DecisionPoint.take(call)
    bad = FirstBad(call.chunks)
    host.before.clear()
    with LEFT_OUT[what](call):
        result = replay(call, after_backward=bad.look)
    exactness = point.compare(result)
    again_losses = losses[num_losses:]
    first_losses = losses[num_losses - len(again_losses) : num_losses]
    del losses[num_losses:]
    return {
        "why_not": call.why_not(),
        "differs": exactness.differs,
        "tolerance": exactness.tolerance,
        "losses_equal": [one.tolist() for one, _ in first_losses] == [one.tolist() for one, _ in again_losses],
        "still_differs": point.put_back(),
        "bad": bad.read(host.before.taken()),
        "seconds": result.seconds,
    }


class without:
    """A replay in which a named part of the entry state is not put back."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, call: RecordedCall) -> without:
        self.snapshot = call.snapshot
        self.kept = dict(call.snapshot.parts)
        return self

    def __enter__(self) -> None:
        for name in self.names:
            self.snapshot.parts[name] = lambda: None

    def __exit__(self, *_: object) -> None:
        self.snapshot.parts.update(self.kept)


class without_grad_mode(without):
    """A replay in the grad mode of the decision point."""

    def __call__(self, call: RecordedCall) -> without:
        self.call = call
        return super().__call__(call)

    def __enter__(self) -> None:
        self.call.grad_mode = torch.is_grad_enabled()

    def __exit__(self, *_: object) -> None:
        self.call.grad_mode = True


class without_zeroing(without):
    """A replay that adds to the gradients of the first pass."""

    def __enter__(self) -> None:
        self.zero = in_place.zero_gradients
        in_place.zero_gradients = lambda chunks: None  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        in_place.zero_gradients = self.zero


LEFT_OUT: Mapping[str, without] = {
    "plain": without(),
    "device": without("device random"),
    "tracker": without("tracker random"),
    "buffers": without("buffers"),
    "accumulators": without("accumulators"),
    "grad_mode": without_grad_mode(),
    "zeroing": without_zeroing(),
}


def spoil(chunks: list[Any]) -> None:
    """Plant what SPOILED says."""
    rank, step, microbatch = (int(word) for word in os.environ.get("SPOILED", "-1,0,0").split(","))
    if rank != int(os.environ["RANK"]):
        return
    calls = itertools.count()

    def spoiled(module: Any, inputs: Any, output: Any) -> None:
        if next(calls) % 4 == microbatch and host.step == step:
            output[0].register_hook(lambda gradient: gradient * float("nan"))

    [*_, last] = [module for module in chunks[-1].modules() if type(module).__name__ == "MLP"]
    last.register_forward_hook(spoiled)


def mutating(get_batch: Callable[..., Any]) -> Callable[..., Any]:
    """A consumer that works in place on what it was given."""

    def read(data_iterator: Any, vp_stage: int | None) -> Any:
        if data_iterator is None:
            return get_batch(data_iterator, vp_stage)
        item = next(data_iterator)
        item["loss_mask"][:, ::2].mul_(0.5)
        return get_batch(iter([item]), vp_stage)

    return read


if os.environ.get("CONSUMER") == "mutating":
    pretrain_gpt.get_batch = mutating(pretrain_gpt.get_batch)
if os.environ.get("LEAVE_OUT_AT_FETCH"):
    data_iterators.copied = lambda item: item
host = Host(training_device())
for name in [name for name in vars(schedules) if name.startswith("forward_backward_")]:
    setattr(schedules, name, host.schedule(getattr(schedules, name)))
for cls in (optimizers.FP32Optimizer, optimizers.MixedPrecisionOptimizer, optimizers.ChainedOptimizer):
    cls.prepare_grads = host.prepare_grads(cls.__dict__["prepare_grads"])
_ParamAndGradBucketGroup.start_grad_sync = host.start_grad_sync(_ParamAndGradBucketGroup.start_grad_sync)

import tests.ranks.end_state  # noqa: E402, F401  it trains when it is imported

Path(os.environ["END_STATE_DIR"], f"replay{os.environ['RANK']}.json").write_text(json.dumps(found))
