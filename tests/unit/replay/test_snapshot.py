"""Random states and module buffers put back as they were; the other parts are tested with what they read."""

from __future__ import annotations

import random

import numpy as np
import torch

from megatron_nanguard.device import CpuDevice
from megatron_nanguard.replay.snapshot import Snapshot


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(1).item()]


def test_every_generator_draws_the_same_again_as_often_as_wanted() -> None:
    snapshot = Snapshot.capture([], CpuDevice())
    first = drawn()
    for _ in range(2):
        snapshot.restore()
        assert drawn() == first


def test_only_the_named_parts_are_put_back() -> None:
    snapshot = Snapshot.capture([], CpuDevice())
    python, numpy, _ = drawn()
    snapshot.restore("numpy random")
    again = drawn()
    assert (again[0] != python, again[1]) == (True, numpy)


def test_module_buffers_come_back_by_identity_and_by_content() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    model[0].register_buffer("bias_of_experts", torch.tensor([1.0, 2.0]))
    model[0].register_buffer("unset", None)
    buffer = model[0].bias_of_experts
    snapshot = Snapshot.capture([model], CpuDevice())
    for _ in range(2):
        buffer.fill_(9.0)
        model[0].bias_of_experts = torch.tensor([5.0, 6.0])
        model(torch.ones(3, 2))
        snapshot.restore()
        assert model[0].bias_of_experts is buffer
        assert buffer.tolist() == [1.0, 2.0]
        assert model[0].num_batches_tracked.item() == 0
        assert model[0].unset is None


class ScalingState:
    """As Transformer Engine keeps it in the dict of a module."""

    def __init__(self) -> None:
        self.scale, self.amax_history = torch.ones(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_scales_of_float8_casts_come_back_in_the_tensors_that_global_buffers_hold() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    state, copied = ScalingState(), torch.tensor([5.0])
    model[0].fp8_meta = {"scaling_fwd": state, "updated_scale_fwd": copied, "recipe": "delayed", "fp8_group": None}
    model[1].fp8_meta = {}
    newest = state.amax_history[0]
    snapshot = Snapshot.capture([model], CpuDevice())
    for _ in range(2):
        for tensor in (state.scale, state.amax_history, copied):
            tensor.fill_(9.0)
        snapshot.restore()
        assert (state.scale.tolist(), newest.tolist(), copied.tolist()) == ([1.0, 1.0], [1.0, 2.0], [5.0])


def test_a_buffer_that_autograd_recorded_is_written_without_a_trace() -> None:
    model = torch.nn.Module()
    model.register_buffer("state", torch.tensor([1.0]))
    snapshot = Snapshot.capture([model], CpuDevice())
    model.state.requires_grad_()
    snapshot.restore()
    assert model.state.grad_fn is None
