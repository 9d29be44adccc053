"""Script of `test_failures.py`: guarded pretraining in which some ranks do what the variable MISBEHAVIOUR names.

Each misbehaviour is one function of this file, called before the guard is switched on, on the ranks that AT_FAULT lists
(3 unless set). When training is over every rank prints whether Megatron's own bucket check is on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import megatron.core.package_info
import megatron.training.training as host
import torch
from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.transformer.mlp import MLP

import megatron_nanguard
from megatron_nanguard.cpurun import pretrain_gpt

BAD_STEP = 2


def nothing() -> None:
    """Like everybody else."""


def without_flag() -> None:
    """The command line of this rank lacks the flag."""
    sys.argv.remove("--nanguard")


def other_options() -> None:
    """The command line of this rank differs in one option."""
    sys.argv += ["--nanguard-scaler-skips", "9"]


def unknown_release() -> None:
    """Megatron reports an unknown release."""
    megatron.core.package_info.__version__ = "0.25.0"


def missing_target() -> None:
    """A function that the guard needs has moved; training still finds it."""
    MegatronOptimizer.prepare_grads = FP32Optimizer.prepare_grads  # type: ignore[method-assign]
    del FP32Optimizer.prepare_grads


def without_plugin() -> None:
    """Nothing of the guard is imported on this rank."""
    os.environ["NANGUARD"] = "0"


def raise_before_the_reduction() -> None:
    """The hook on the bucket groups raises, whenever it is called in that step."""
    from megatron_nanguard.sentinel.gradient_norms import BeforeReduction

    BeforeReduction.look = _raising_at_bad_step(BeforeReduction.look)  # type: ignore[method-assign]


def raise_in_names() -> None:
    """Names and place cannot be read off the model."""
    from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer

    GuardedOptimizer.learn = _raising  # type: ignore[method-assign, assignment]


def raise_at_the_start() -> None:
    """The first thing after the handshake raises."""
    from megatron_nanguard.guarded_run import guarded_run

    guarded_run.RunFiles = _raising  # type: ignore[misc, assignment]


def raise_when_the_step_opens() -> None:
    """The schedule hook raises before the step is open."""
    from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers

    GuardedOptimizers.training = _raising_at_bad_step(GuardedOptimizers.training)  # type: ignore[method-assign]


def raise_in_the_flags() -> None:
    """The last local work before the vote raises."""
    from megatron_nanguard.guarded_run.guarded_step import GuardedStep

    GuardedStep.flag_inputs = _raising_at_bad_step(GuardedStep.flag_inputs)  # type: ignore[method-assign]


def raise_in_the_signal() -> None:
    """The evidence of this rank cannot be collected."""
    from megatron_nanguard.incident import rank_evidence

    rank_evidence.collect = _raising


def raise_in_the_exchange() -> None:
    """An error outside of every shield."""
    from megatron_nanguard.incident import stages

    stages.exchange = _raising


def die_in_the_exchange() -> None:
    """The rank is killed where its peers wait for it."""
    _send_itself(signal.SIGKILL)


def stop_in_the_exchange() -> None:
    """The rank hangs where its peers wait for it."""
    _send_itself(signal.SIGSTOP)


def run_out_of_memory_when_traced() -> None:
    """An operator of the first traced replay asks for more than there is, while its peers are in a collective."""
    from megatron_nanguard.tracing.tracer import Tracer

    enter = Tracer.__enter__

    def entered(tracer: Tracer) -> Tracer:
        MLP.forward = _out_of_memory
        return enter(tracer)

    Tracer.__enter__ = entered  # type: ignore[method-assign]


def run_out_of_memory_when_checked() -> None:
    """The check of an overflow far below the loss scale asks for more than there is."""
    from megatron_nanguard.incident.replaying import passes

    passes.lower_scale = _out_of_memory


def take_data_that_cannot_be_copied() -> None:
    """A lock in every micro-batch; the forward step does not look at it."""
    take = RerunDataIterator.__next__
    RerunDataIterator.__next__ = lambda self: {**take(self), "lock": threading.Lock()}  # type: ignore[method-assign]


def take_data_from_elsewhere() -> None:
    """The forward step reads from the iterator that the script has kept, not from what the schedule hands to it."""
    build, get_batch = host.build_train_valid_test_data_iterators, pretrain_gpt.get_batch
    kept: list[Any] = []

    def built(*args: Any, **kwargs: Any) -> Any:
        iterators = build(*args, **kwargs)
        kept.append(iterators[0])
        return iterators

    host.build_train_valid_test_data_iterators = built
    pretrain_gpt.get_batch = lambda _, vp_stage: get_batch(kept[0], vp_stage)


class Feed:
    """Hands out micro-batches in a way of its own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def get(self) -> Any:
        return next(self.inner)


def take_data_from_a_feed() -> None:
    """What the schedule gets, and hands to the forward step, is no iterator."""
    get_schedule, get_batch = host.get_forward_backward_func, pretrain_gpt.get_batch

    def fed(*args: Any, **kwargs: Any) -> Any:
        schedule = get_schedule(*args, **kwargs)
        return lambda **call: schedule(**{**call, "data_iterator": Feed(call["data_iterator"])})

    host.get_forward_backward_func = fed
    pretrain_gpt.get_batch = lambda feed, vp_stage: get_batch(iter(feed.get, None), vp_stage)


def die_while_merging() -> None:
    """The rank that merges the files is killed while its peers wait for the end of it."""
    from megatron_nanguard.incident.merged_file import MergedFile

    MergedFile.complete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _send_itself(number: signal.Signals) -> None:
    from megatron_nanguard.incident import stages

    stages.exchange = lambda *_: os.kill(os.getpid(), number)  # type: ignore[assignment, return-value]


def _out_of_memory(*args: Any, **kwargs: Any) -> Any:
    Path("out_of_memory").touch()
    raise torch.OutOfMemoryError("planted by the test")


def _raising(*args: Any, **kwargs: Any) -> Any:
    raise LookupError("planted by the test")


def _raising_at_bad_step(function: Callable[..., Any]) -> Callable[..., Any]:
    from megatron_nanguard.megatron_api.host_program import log_step

    return lambda *args, **kwargs: (_raising if log_step() == BAD_STEP else function)(*args, **kwargs)


def train_and_tell(train: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's training loop, and one line at its end."""

    def training(forward_step: Any, chunks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        result = train(forward_step, chunks, *args, **kwargs)
        print("bucket check", [chunk.ddp_config.check_for_nan_in_grad for chunk in chunks])
        return result

    return training


host.train = train_and_tell(host.train)
if os.environ["RANK"] in os.environ.get("AT_FAULT", "3").split():
    globals()[os.environ["MISBEHAVIOUR"]]()
megatron_nanguard.enable()
pretrain_gpt.main()
