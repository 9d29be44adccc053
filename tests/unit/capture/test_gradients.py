"""Gradients and norms by parameter."""

from __future__ import annotations

from typing import Any

import torch

from megatron_nanguard.capture.gradients import gradients_by_name, norms_by_name
from megatron_nanguard.parameters.registry import ParameterMap
from megatron_nanguard.sentinel import BeforeReduction
from megatron_nanguard.topology.coordinates import read
from tests.unit.one_rank import trainer


def test_gradients_and_norms_have_the_names_of_their_parameters(megatron: Any) -> None:
    made = trainer()
    names = ParameterMap([made.ddp], read([made.ddp])[1])
    made.forward_backward()
    assert {name: g.tolist() for name, g in gradients_by_name(names).items()} == {
        "first.weight": [5.0, 5.0, 6.0, 6.0],
        "second.weight": [3.0, 7.0],
    }
    for per_parameter, expected in ((True, {"first.weight": 122.0**0.5, "second.weight": 58.0**0.5}), (False, {})):
        before = BeforeReduction(per_parameter)
        for group in made.ddp.bucket_groups:
            before.look(group, False)
        found = norms_by_name(before.taken(), names)
        assert found == {name: torch.tensor(norm).item() for name, norm in expected.items()}
