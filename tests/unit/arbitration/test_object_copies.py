"""Copies of arguments share no state with the originals, and keep what is one object one."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.nn import Linear, Parameter

from megatron_nanguard.arbitration.object_copies import copied


@dataclass(slots=True)
class Arguments:
    weight: Any
    again: Any
    scale: float


class Pair(NamedTuple):
    first: Any
    second: Any


def test_tensors_inside_of_objects_are_copied_once() -> None:
    weight = torch.ones(2)

    made = copied(Arguments(weight, {"inner": [weight]}, 3.0))

    made.weight += 1
    assert weight.tolist() == [1.0, 1.0]
    assert made.again["inner"][0] is made.weight
    assert made.scale == 3.0


def test_an_object_that_is_called_is_copied_with_its_state() -> None:
    class Quantizer:
        def __init__(self) -> None:
            self.amax = torch.ones(1)
            self.own = self

        def __call__(self) -> None:
            self.amax += 1

    quantizer = Quantizer()

    made = copied(quantizer)

    made()
    assert (float(quantizer.amax), float(made.amax)) == (1.0, 2.0)
    assert made.own is made


def test_a_module_gets_a_state_of_its_own_and_keeps_its_submodules() -> None:
    module = torch.nn.Sequential(Linear(2, 2))
    module.register_buffer("amax", torch.ones(1))
    module.fp8_meta = {"scale": torch.ones(1)}  # type: ignore[assignment]

    made = copied(module)

    made.amax += 1
    made.fp8_meta["scale"] += 1
    assert float(module.amax) == float(module.fp8_meta["scale"]) == 1.0
    assert made[0] is module[0]


def test_a_parameter_keeps_what_a_kernel_asks_of_it_and_gets_an_empty_gradient() -> None:
    weight = Parameter(torch.ones(2))
    weight.main_grad = torch.full((2,), 7.0)  # type: ignore[attr-defined]
    weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    weight.partition_dim = 1  # type: ignore[attr-defined]
    weight.hook = lambda: None  # type: ignore[attr-defined]

    made = copied(Pair(weight, None)).first

    assert isinstance(made, Parameter)
    assert made is not weight
    assert made.main_grad.tolist() == [0.0, 0.0]  # type: ignore[attr-defined]
    assert made.grad_added_to_main_grad is False, "it is to be set anew"  # type: ignore[attr-defined]
    assert made.partition_dim == 1  # type: ignore[attr-defined]
    assert not hasattr(made, "hook")


def test_what_cannot_be_copied_stays_itself() -> None:
    class Refuses:
        def __copy__(self) -> Any:
            raise RuntimeError("no")

    refuses, function, generator = Refuses(), test_tensors_inside_of_objects_are_copied_once, torch.Generator()

    made = copied([refuses, function, SimpleNamespace(generator=generator)])

    assert made[0] is refuses
    assert made[1] is function
    assert made[2].generator is not generator
