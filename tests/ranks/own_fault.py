"""Script: train like `pretrain_gpt.py` with one fault that the script itself plants, whether or not a guard watches.

FAULT is JSON: `step`, `rank`, `where` (gradient, reduced or loss) and, but for a loss, the end of a parameter's name.
Or no fault at all but a loss that is `factor` times as large in some `steps`, on every rank (where: large loss).
STEPS_DIR is the folder for one file per rank: what every step left behind, as digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import megatron.training.training as host
import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from megatron_nanguard.cpurun import pretrain_gpt

FAULT: dict[str, Any] = json.loads(os.environ["FAULT"])
RANK = int(os.environ["RANK"])

steps: list[dict[str, Any]] = []


def is_due(where: str) -> bool:
    """Whether the fault belongs here and now."""
    return FAULT["where"] == where and (FAULT["rank"], FAULT["step"]) == (RANK, host.get_args().curr_iteration + 1)


def factor() -> float:
    """What the loss of this step is multiplied with."""
    is_large = FAULT["where"] == "large loss" and host.get_args().curr_iteration + 1 in FAULT["steps"]
    return float(FAULT["factor"]) if is_large else 1.0


def poison(chunk: torch.nn.Module) -> None:
    """A NaN in the first element of the parameter's gradient."""
    (param,) = (param for name, param in chunk.named_parameters() if name.endswith(FAULT["param"]))
    param.main_grad.view(-1)[0] = math.nan


def around_reduction(finish_grad_sync: Callable[..., Any]) -> Callable[..., Any]:
    """Without overlap this call is the reduction."""

    def finish(chunk: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_due("gradient"):
            poison(chunk)
        returned = finish_grad_sync(chunk, *args, **kwargs)
        if is_due("reduced"):
            poison(chunk)
        return returned

    return finish


def in_loss(loss_func: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of NaN with a gradient of 1, or a loss that is only large."""

    def loss(*args: Any) -> Any:
        value, *rest = loss_func(*args)
        return (value + math.nan if is_due("loss") else value * factor(), *rest)

    return loss


def recorded(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Write down after every step what it left behind."""

    def step(*args: Any, **kwargs: Any) -> Any:
        returned = train_step(*args, **kwargs)
        _, _, chunks, optimizer, scheduler, *_ = args
        leaves = optimizer.chained_optimizers
        scalers = [leaf.grad_scaler.state_dict() for leaf in leaves if getattr(leaf, "grad_scaler", None)]
        steps.append(
            {
                "weights": digest(tensors(chunks, leaves)),
                "scalers": [{name: float(value) for name, value in state.items()} for state in scalers],
                "random": digest([torch.cuda.get_rng_state(), *get_cuda_rng_tracker().get_states().values()]),
                "samples": scheduler.num_steps,
                "norm": None if returned[5] is None else float(returned[5]),
            }
        )
        Path(os.environ["STEPS_DIR"], f"rank{RANK}.json").write_text(json.dumps(steps))
        return returned

    return step


def tensors(chunks: Sequence[Any], leaves: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Parameters, main parameters and moments."""
    for chunk in chunks:
        yield from chunk.parameters()
    for leaf in leaves:
        for group in leaf.optimizer.param_groups:
            for param in group["params"]:
                yield param
                yield from (value for _, value in sorted(leaf.optimizer.state[param].items()) if torch.is_tensor(value))


def digest(values: Iterable[torch.Tensor]) -> str:
    """Equal exactly if every bit is."""
    found = hashlib.sha256()
    for value in values:
        found.update(value.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


DistributedDataParallel.finish_grad_sync = around_reduction(DistributedDataParallel.finish_grad_sync)
pretrain_gpt.loss_func = in_loss(pretrain_gpt.loss_func)
host.train_step = recorded(host.train_step)
pretrain_gpt.main()
