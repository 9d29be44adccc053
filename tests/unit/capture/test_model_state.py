"""Model, optimizer and gradients of a rank by name; the state of another model is refused as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron_nanguard.capture.model_state import (
    gradients_by_name,
    live_state,
    norms_by_name,
    put_back,
    split,
    state_bytes,
)
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.sentinel.gradient_norms import BeforeReduction
from megatron_nanguard.topology.coordinates import read
from tests.unit.one_rank import Trainer, trainer


def names_of(made: Trainer) -> ParameterMap:
    return ParameterMap([made.ddp], read([made.ddp])[1])


def state_of(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in live_state([made.ddp], names_of(made), made.optimizer).items()}


def test_weights_buffers_main_parameters_and_moments_have_names(megatron: Any) -> None:
    made = trainer(optimizer="adam", bf16=True)
    made.net.first.register_buffer("seen", torch.tensor([3.0]))
    made.net.register_buffer("of_all", torch.tensor([4.0]))
    made.forward_backward()
    made.step()
    place = "optimizer/optimizer 0, group 0, parameter"
    kept = ("main", "step", "exp_avg", "exp_avg_sq")
    assert list(state_of(made)) == [
        *("parameter/first.weight", "parameter/second.weight", "buffer/chunk0.of_all", "buffer/first.seen"),
        *(f"{place} 0/{name}" for name in kept),
        *(f"{place} 1/{name}" for name in kept),
    ]


def test_main_parameters_that_are_the_weights_are_saved_once(megatron: Any) -> None:
    assert list(state_of(trainer())) == ["parameter/first.weight", "parameter/second.weight"]


def test_buffers_of_an_earlier_moment_take_the_place_of_those_now(megatron: Any) -> None:
    made = trainer()
    made.net.first.register_buffer("seen", torch.tensor([3.0]))
    made.net.first.register_buffer("new", torch.tensor([5.0]))
    earlier = {(made.net.first, "seen"): torch.tensor([1.0])}
    found = live_state([made.ddp], names_of(made), None, earlier)
    assert found["buffer/first.seen"].item() == 1.0
    assert "buffer/first.new" not in found


def test_what_no_file_can_hold_is_named() -> None:
    kept, lost = split({"a": torch.ones(1), "b": torch.ones(1).to(torch.complex64)})
    assert (list(kept), lost) == (["a"], ["b: a Tensor of torch.complex64"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("parameter/second.weight"), "the capture lacks parameter/second.weight; build"),
        (lambda saved: saved.update({"buffer/x.y": torch.ones(1)}), "this model lacks buffer/x.y; build"),
        (
            lambda saved: saved.update({"optimizer/optimizer 0, group 1, parameter 2/exp_avg": torch.ones(1)}),
            "this optimizer lacks optimizer 0, group 1, parameter 2; build",
        ),
        (
            lambda saved: saved.update({"parameter/first.weight": torch.ones(4, 2)}),
            "of other shape is parameter/first.weight; build the model with the arguments and the layout of the run",
        ),
    ],
)
def test_another_models_state_is_refused_and_nothing_is_changed(megatron: Any, change: Any, message: str) -> None:
    made = trainer()
    saved = state_of(made)
    for tensor in saved.values():
        tensor.zero_()
    change(saved)
    weights = made.weights()

    with pytest.raises(ReplayError, match=message):
        put_back(saved, [made.ddp], names_of(made), made.optimizer)

    assert made.weights() == weights


def test_main_parameters_of_another_kind_of_optimizer_are_refused(megatron: Any) -> None:
    whole = trainer(optimizer="adam", bf16=True)
    sharded = trainer(
        optimizer="adam", bf16=True, use_distributed_optimizer=True, ddp={"use_distributed_optimizer": True}
    )
    saved = state_of(sharded)
    for tensor in saved.values():
        tensor.zero_()
    weights = whole.weights()

    with pytest.raises(ReplayError, match="of other shape is optimizer/optimizer 0, group 0, parameter 0/main"):
        put_back(saved, [whole.ddp], names_of(whole), whole.optimizer)

    assert whole.weights() == weights


def test_without_an_optimizer_its_saved_state_is_left_out(megatron: Any) -> None:
    made = trainer()
    saved = {**state_of(made), "optimizer/optimizer 0, group 1, parameter 2/exp_avg": torch.ones(1)}
    saved["parameter/second.weight"].zero_()
    put_back(saved, [made.ddp], names_of(made), None)
    assert made.weights() == [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]


def test_a_buffer_that_gets_its_content_later_gets_it_here(megatron: Any) -> None:
    made, fresh = trainer(), trainer()
    made.net.first.register_buffer("seen", torch.tensor([3.0]))
    fresh.net.first.register_buffer("seen", None)
    saved = state_of(made)

    put_back(saved, [fresh.ddp], names_of(fresh), fresh.optimizer)

    assert fresh.net.first.seen.tolist() == [3.0]
    assert fresh.net.first.seen is not saved["buffer/first.seen"]


def test_only_a_few_names_are_listed(megatron: Any) -> None:
    made = trainer()
    saved = {**state_of(made), **{f"buffer/x{number}": torch.ones(1) for number in range(5)}}
    with pytest.raises(ReplayError, match=r"lacks buffer/x0, buffer/x1, buffer/x2 and 2 more; build"):
        put_back(saved, [made.ddp], names_of(made), None)


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


def size_of(made: Trainer) -> int:
    return state_bytes([made.ddp], ParameterMap([made.ddp], read([made.ddp])[1]), made.optimizer)


def test_moments_are_counted_before_the_first_step_made_them(megatron: Any) -> None:
    made = trainer(optimizer="adam", bf16=True)
    # 6 weights: 2 bytes each, 4 for the main parameter and 8 for the moments.
    assert size_of(made) == 6 * (2 + 4 + 8)
    made.forward_backward()
    made.step()
    # torch's Adam counts its steps in a tensor of 4 bytes per parameter.
    assert size_of(made) == 6 * (2 + 4 + 8) + 2 * 4
