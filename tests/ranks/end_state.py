"""Script: train like `pretrain_gpt.py`, write down the state in which each rank ends, to be compared bit by bit.

Beside it: what each step asked of other ranks and of the device. END_STATE_DIR is the folder for one file per rank.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import megatron.training.training as host
import numpy as np
import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from megatron_nanguard.cpurun import pretrain_gpt
from tests.ranks.counting import Counting

State = dict[str, Any]

counting = Counting()
losses: list[tuple[torch.Tensor, torch.Tensor]] = []
norms: list[float] = []


def recording_losses(loss_func: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what the loss function returns for every micro-batch."""

    def recorded(*args: Any) -> Any:
        returned = loss_func(*args)
        losses.append((returned[0].detach().clone(), returned[1].clone()))
        return returned

    return recorded


def recording_norms(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the gradient norm of every step, and tell the counting where a step begins."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        counting.step_begins()
        returned = train_step(*args, **kwargs)
        norms.append(returned[5])
        return returned

    return recorded


def dumping(train: Callable[..., Any]) -> Callable[..., Any]:
    """Train, then write the state."""

    def trained(
        forward_step: Any, chunks: Sequence[Any], optimizer: Any, scheduler: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with counting:
            returned = train(forward_step, chunks, optimizer, scheduler, *args, **kwargs)
        counting.step_ends()
        written = {
            "state": {**of_step(), **of_model(chunks), **of_optimizer(optimizer, scheduler), **of_random_numbers()},
            "modules": sorted(name for name in sys.modules if name.startswith("megatron_nanguard")),
            "operators": [dict(step) for step in counting.steps],
            "collectives": counting.collectives,
        }
        torch.save(written, Path(os.environ["END_STATE_DIR"], f"rank{torch.distributed.get_rank()}.pt"))
        return returned

    return trained


def of_step() -> State:
    """Losses and gradient norms."""
    found: State = {f"norm of step {number}": norm for number, norm in enumerate(norms, start=1)}
    for number, (loss, num_tokens) in enumerate(losses):
        found[f"loss {number}"], found[f"tokens {number}"] = loss, num_tokens
    return found


def of_model(chunks: Sequence[Any]) -> State:
    """Parameters and buffers, those of the router among them."""
    return {
        f"chunk {number} {name}": tensor.detach()
        for number, chunk in enumerate(chunks)
        for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers())
    }


def of_optimizer(optimizer: Any, scheduler: Any) -> State:
    """Main parameters, moments, loss scale with its trackers, learning rate."""
    found: State = {f"scheduler {name}": value for name, value in scheduler.state_dict().items()}
    for number, leaf in enumerate(optimizer.chained_optimizers):
        scaler = getattr(leaf, "grad_scaler", None)  # fp32 has none
        found |= {f"scaler {number} {name}": value for name, value in (scaler.state_dict() if scaler else {}).items()}
        for place, group, param in main_params(leaf):
            found[f"optimizer {number} {place} main param"] = param.detach()
            found[f"optimizer {number} {place} lr"] = group["lr"]
            found |= {f"optimizer {number} {place} {key}": v for key, v in leaf.optimizer.state[param].items()}
    return found


def main_params(leaf: Any) -> Iterator[tuple[str, dict[str, Any], torch.Tensor]]:
    """What the inner optimizer updates: the parameters themselves, main parameters, or shards of them."""
    for group_index, group in enumerate(leaf.optimizer.param_groups):
        for index, param in enumerate(group["params"]):
            yield f"{group_index}.{index}", group, param


def of_random_numbers() -> State:
    """Every generator that training can draw from."""
    name, keys, *rest = np.random.get_state()
    return {
        "random python": random.getstate(),
        "random numpy": (name, keys.tolist(), *rest),
        "random torch": torch.get_rng_state(),
        "random device": torch.cuda.get_rng_state(),
        **{f"random tracker {name}": state for name, state in get_cuda_rng_tracker().get_states().items()},
    }


pretrain_gpt.loss_func = recording_losses(pretrain_gpt.loss_func)
host.train_step = recording_norms(host.train_step)
host.train = dumping(host.train)
pretrain_gpt.main()
