"""Tensors in the memory of the model are named by their addresses."""

from __future__ import annotations

import torch
from torch import nn

from megatron_nanguard.tracing.places.external_tensors import ExternalTensors, ModelMemory, describe


def model_and_outside() -> tuple[nn.Module, ExternalTensors]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    params = {param: name for name, param in model.named_parameters()}
    for param in params:
        param.main_grad = torch.zeros_like(param)
    return model, ExternalTensors([model], {module: name for name, module in model.named_modules()}, params)


def name_of(owned: ModelMemory | None) -> tuple[str, str, bool] | None:
    return None if owned is None else (owned.name, owned.module, owned.is_parameter)


def test_parameter_its_gradient_and_a_buffer_are_named() -> None:
    model, outside = model_and_outside()
    weight = model[0].weight
    assert name_of(outside.owner(weight)) == ("parameter 0.weight", "0", True)
    assert name_of(outside.owner(weight[1:])) == ("parameter 0.weight", "0", True)
    assert name_of(outside.owner(weight.main_grad)) == ("gradient of 0.weight", "0", True)
    assert name_of(outside.owner(model[1].running_mean)) == ("buffer 1.running_mean", "1", False)


def test_other_tensors_have_no_owner() -> None:
    _, outside = model_and_outside()
    stranger = torch.ones(2, 2, dtype=torch.bfloat16)
    assert outside.owner(stranger) is None
    assert not outside.holds(stranger)
    assert describe(stranger) == "tensor (2, 2) bfloat16"


def test_element_of_a_bucket_is_named_by_its_gradient() -> None:
    model = nn.Linear(2, 3)
    bucket = torch.zeros(9)
    model.weight.main_grad, model.bias.main_grad = bucket[:6].view(3, 2), bucket[6:]
    outside = ExternalTensors([model], {}, {model.weight: "weight", model.bias: "bias"})
    assert name_of(outside.owner(bucket, 5)) == ("gradient of weight", "", True)
    assert name_of(outside.owner(bucket, 6)) == ("gradient of bias", "", True)
    assert outside.holds(bucket)
