"""Script of `test_worlds.py`: trainers on megatron.core alone, with a NaN of the script's own in the last step.

SCENARIO names the function of this file that trains. Nothing of `megatron.training` is there, as in such a trainer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

import megatron_nanguard
from tests.ranks.own_trainer import build, forward_backward

STEPS = 3
TRAINING = 4
"""Ranks of the six that train, where not all do."""


def window() -> None:
    """Ranks 0 to 3 are one Megatron world, ranks 4 and 5 another that builds no optimizer."""
    make_groups_locally()
    trains = dist.get_rank() < TRAINING
    offset, size = (0, TRAINING) if trains else (TRAINING, dist.get_world_size() - TRAINING)
    parallel_state.initialize_model_parallel(rank_offset=offset, local_world_size=size)
    train_until_nan() if trains else look_on()


def strangers() -> None:
    """Ranks 0 to 3 are a Megatron world; ranks 4 and 5 are processes of another kind."""
    if dist.get_rank() < TRAINING:
        make_groups_locally()
        parallel_state.initialize_model_parallel(local_world_size=TRAINING)
        train_until_nan()
    else:
        look_on()


def one_world() -> None:
    """All six ranks are one Megatron world, in which ranks 0 and 1 have nothing to train."""
    parallel_state.initialize_model_parallel()
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    ranks = list(range(dist.get_world_size()))[-TRAINING:]
    replicas = dist.new_group(ranks)
    if dist.get_rank() in ranks:
        single = ("tp", "pp", "mp", "cp", "tp_cp", "ep", "expt_tp", "tp_ep", "tp_ep_pp", "embd", "pos_embd")
        whole = ("dp", "dp_cp", "expt_dp", "intra_dp_cp", "intra_expt_dp", "tp_dp_cp")
        groups = ProcessGroupCollection(**dict.fromkeys(single, alone), **dict.fromkeys(whole, replicas))
        train_until_nan(groups, faulty_rank=3)
    else:
        look_on()


def second_life() -> None:
    """The parallel world is taken down and built again, with another model."""
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    chunk, optimizer = build(None, num_layers=2)
    forward_backward(chunk, optimizer)
    assert optimizer.step()[0]
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel()
    train_until_nan()


def two_optimizers() -> None:
    """Two models take turns; the second one's gradient turns NaN while the first one's waits to be applied."""
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    pairs = [build(None), build(None, num_layers=2)]
    for _ in range(STEPS - 1):
        for chunk, optimizer in pairs:
            forward_backward(chunk, optimizer)
            assert optimizer.step()[0]
    plant(pairs[1][0], "decoder.layers.1.mlp.linear_fc1.weight")
    for chunk, optimizer in pairs:
        forward_backward(chunk, optimizer)
    for _, optimizer in pairs:
        print("applied", optimizer.step()[0])


def prepared_by_hand() -> None:
    """The trainer asks for `prepare_grads` itself before it steps."""
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    votes = count_votes()
    chunk, optimizer = build(None)
    for step in range(STEPS):
        if step == STEPS - 1:
            plant(chunk, "decoder.layers.0.mlp.linear_fc1.weight")
        forward_backward(chunk, optimizer)
        print("found", optimizer.prepare_grads())
        print("applied", optimizer.step()[0])
        print("votes", len(votes))


def look_on() -> None:
    """Do without an optimizer of one's own, but for the part that Megatron asks of the whole world.

    Source: megatron/core/optimizer/__init__.py, _get_param_groups, called for dense and for expert parameters
    """
    for _ in ("dense", "expert"):
        dist.all_gather_object([None] * dist.get_world_size(), [])


def train_until_nan(groups: ProcessGroupCollection | None = None, faulty_rank: int = 1) -> None:
    """Train; the gradient of the last step is not finite on one rank."""
    model_parallel_cuda_manual_seed(1)
    chunk, optimizer = build(groups)
    for step in range(STEPS):
        if step == STEPS - 1:
            plant(chunk, "decoder.layers.0.mlp.linear_fc1.weight", faulty_rank)
        forward_backward(chunk, optimizer, groups)
        print("applied", optimizer.step()[0])


def plant(chunk: Any, name: str, faulty_rank: int = 1) -> None:
    """From now on the gradient of a parameter begins with a NaN, on one rank."""

    def poison(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        grad.view(-1)[0] = torch.nan
        return grad

    if dist.get_rank() == faulty_rank:
        dict(chunk.module.named_parameters())[name].register_hook(poison)


def count_votes() -> list[int]:
    """Sizes of the all-reduces of several integers from now on: Megatron has none."""
    sizes: list[int] = []
    all_reduce: Callable[..., Any] = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_floating_point() and tensor.numel() > 1:
            sizes.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = counting
    return sizes


def make_groups_locally() -> None:
    """Groups in which some ranks have no part are made without them; Megatron leaves this to its caller."""
    create = parallel_state.create_group
    parallel_state.create_group = lambda *args, **kwargs: create(*args, **{**kwargs, "use_local_synchronization": True})


for name in [name for name in sys.modules if name.startswith("megatron.training")]:
    del sys.modules[name]
megatron_nanguard.enable()
dist.init_process_group("nccl")
globals()[os.environ["SCENARIO"]]()
print("ended")
