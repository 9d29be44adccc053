from __future__ import annotations

import pytest
from torch import zeros
from torch.nn import Linear, Module, ModuleList, Parameter

from megatron_nanguard.parameters.global_names import name_modules, name_parameters


def layer(number: int | None = None, **children: Module) -> Module:
    module = Module()
    if number is not None:
        module.layer_number = number
    for name, child in children.items():
        module.add_module(name, child)
    return module


def model(path: str, *layers: Module) -> Module:
    """The layers under a dotted path, inside DDP and Float16Module."""
    inner: Module = ModuleList(layers)
    for name in reversed(("module", "module", *path.split("."))):
        inner = layer(None, **{name: inner})
    return inner


def moe(experts: Module, **others: Module) -> Module:
    module = layer(None, experts=experts, **others)
    module.local_expert_indices = [4, 5]
    return module


def linear() -> Linear:
    return Linear(1, 1, bias=False)


def holding(*names: str) -> Module:
    module = Module()
    for name in names:
        module.register_parameter(name, Parameter(zeros(1)))
    return module


def names(*chunks: Module) -> list[str]:
    return [named.name for named in name_parameters(chunks)]


def test_layers_count_over_all_stages() -> None:
    (named,) = name_parameters([model("decoder.layers", layer(4, mlp=linear()))])
    assert (named.name, named.local_name) == ("decoder.layers.3.mlp.weight", "decoder.layers.0.mlp.weight")
    assert not named.expert


def test_chunks_keep_their_place() -> None:
    chunks = [model("decoder.layers", layer(number, mlp=linear())) for number in (2, 6)]
    assert [(named.chunk, named.name) for named in name_parameters(chunks)] == [
        (0, "decoder.layers.1.mlp.weight"),
        (1, "decoder.layers.5.mlp.weight"),
    ]
    assert name_modules(chunks)["decoder.layers.5.mlp"] is chunks[1].module.module.decoder.layers[0].mlp


def test_the_number_that_a_submodule_copies_changes_nothing() -> None:
    attention = layer(4, layers=ModuleList([linear()]))
    assert names(model("decoder.layers", layer(4, self_attention=attention))) == [
        "decoder.layers.3.self_attention.layers.0.weight"
    ]


def test_layers_without_a_number_keep_their_index_and_stay_apart() -> None:
    chunks = [model("blocks.layers", layer(None, mlp=linear())) for _ in range(2)]
    assert names(*chunks) == ["blocks.layers.0.mlp.weight", "chunk1:blocks.layers.0.mlp.weight"]


def test_inner_layers_of_multi_token_prediction_keep_their_index() -> None:
    # The depth has a stable number; what is inside is numbered otherwise in every release.
    depth = layer(1, mtp_model_layer=layer(None, layers=ModuleList([layer(9, mlp=linear())])))
    assert names(model("mtp.layers", depth)) == ["mtp.layers.0.mtp_model_layer.layers.0.mlp.weight"]


def test_sequential_experts_count_over_all_expert_ranks() -> None:
    experts = layer(None, local_experts=ModuleList([layer(None, linear_fc1=linear()) for _ in range(2)]))
    chunk = model("decoder.layers", layer(1, mlp=moe(experts)))
    assert names(chunk) == [
        "decoder.layers.0.mlp.experts.local_experts.4.linear_fc1.weight",
        "decoder.layers.0.mlp.experts.local_experts.5.linear_fc1.weight",
    ]
    assert "decoder.layers.0.mlp.experts.local_experts.5" in name_modules([chunk])
    assert all(named.expert for named in name_parameters([chunk]))


GROUPED = {
    "one parameter per expert": (
        layer(None, linear_fc1=holding("weight0", "weight1", "bias1")),
        ["linear_fc1.weight4", "linear_fc1.weight5", "linear_fc1.bias5"],
    ),
    "all experts in two": (holding("weight1", "weight2"), ["weight1[4-5]", "weight2[4-5]"]),
    "all experts in one": (layer(None, linear_fc2=holding("weight")), ["linear_fc2.weight[4-5]"]),
}


@pytest.mark.parametrize(("experts", "expected"), GROUPED.values(), ids=GROUPED)
def test_grouped_experts_count_over_all_expert_ranks(experts: Module, expected: list[str]) -> None:
    chunk = model("decoder.layers", layer(1, mlp=moe(experts)))
    assert names(chunk) == [f"decoder.layers.0.mlp.experts.{name}" for name in expected]


def test_router_and_shared_experts_are_no_experts() -> None:
    chunk = model("decoder.layers", layer(1, mlp=moe(layer(), router=linear(), shared_experts=holding("weight0"))))
    named = name_parameters([chunk])
    assert [each.name.rpartition("mlp.")[2] for each in named] == ["router.weight", "shared_experts.weight0"]
    assert not any(each.expert for each in named)


def test_a_tied_parameter_appears_once() -> None:
    first, second = linear(), linear()
    second.weight = first.weight
    assert names(layer(None, embedding=first, output_layer=second)) == ["embedding.weight"]


def test_no_chunks() -> None:
    assert (name_parameters([]), name_modules([])) == ([], {})
