"""What optimizers keep: main parameters or shards of them, moments, and numbers such as step counts and loss scales."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.megatron_api.optimizers import leaves, scalers
from megatron_nanguard.megatron_api.protocols import InnerOptimizer, LeafOptimizer, MegatronOptimizer

PAIRS = (
    ("float16_groups", "fp32_from_float16_groups"),
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
    ("model_fp32_groups", "shard_fp32_groups"),
)
"""Lists of groups, model parameters beside main parameters: without and with the distributed optimizer.

Source: megatron/core/optimizer/optimizer.py, Float16OptimizerWithFloat16Params; distrib_optimizer.py
"""

MAIN = "main"
"""Name of the main parameter beside those of the state."""


class OptimizerParameter(NamedTuple):
    """One parameter as an optimizer of this rank holds it.

    Attributes:
        place: its position, such as "optimizer 0, group 1, parameter 2".
        param: the model parameter; None where the optimizer does not keep it.
        main: what the optimizer updates: a copy or shard of the parameter in higher precision, or itself.
        state: its other tensors by name, such as exp_avg.
    """

    place: str
    param: Parameter | None
    main: Tensor
    state: dict[str, Tensor]

    @property
    def is_copy(self) -> bool:
        """Whether `main` has memory of its own, so that it may differ from the model's weight."""
        return self.param is None or self.main.untyped_storage().data_ptr() != self.param.untyped_storage().data_ptr()


def optimizer_parameters(optimizer: MegatronOptimizer | None) -> list[OptimizerParameter]:
    """Return all parameters, in the order of the optimizers and their groups; none where the optimizer is not known."""
    return [one for number, leaf, inner in _with_inner(optimizer) for one in _of_leaf(number, leaf, inner)]


def unknown_places(optimizer: MegatronOptimizer | None, kept: Mapping[str, Tensor]) -> list[str]:
    """Return the places of values, named as for `put_back`, at which this optimizer has no parameter."""
    known = {one.place for one in optimizer_parameters(optimizer)}
    places = dict.fromkeys(name.rpartition("/")[0] for name in kept)
    return [place for place in places if place not in known]


def put_back(optimizer: MegatronOptimizer | None, kept: Mapping[str, Tensor]) -> None:
    """Write values over the parameters and moments, by names such as "PLACE/main" and "PLACE/exp_avg".

    State that an optimizer creates in its first step is created here. Values at `unknown_places` are ignored.
    """
    slots: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, value in kept.items():
        place, _, slot = name.rpartition("/")
        slots[place][slot] = value
    for number, leaf, inner in _with_inner(optimizer):
        for one in _of_leaf(number, leaf, inner):
            for slot, value in slots[one.place].items():
                if slot == MAIN:
                    one.main.detach().copy_(value)
                else:
                    _put_slot(inner.state[one.main], slot, value, one.main)


def numbers(optimizer: MegatronOptimizer | None) -> dict[str, float]:
    """Return loss scales, trackers and step counts, named "scaler 0, growth_tracker" or "optimizer 0, group 1, step".

    Source: megatron/core/optimizer/grad_scaler.py; apex and Transformer Engine count steps per group
    Sync: one host read per loss scaler.
    """
    found = {
        f"scaler {number}, {name}": float(value)
        for number, scaler in enumerate(scalers(optimizer))
        for name, value in scaler.state_dict().items()
    }
    return found | {name: float(group["step"]) for name, group in _groups(optimizer) if "step" in group}


def put_numbers_back(optimizer: MegatronOptimizer | None, kept: Mapping[str, float]) -> None:
    """Set the values that `numbers` returned; a scaler or count that is not among them is left unchanged."""
    for number, scaler in enumerate(scalers(optimizer)):
        present = {f"scaler {number}, {name}": (name, value) for name, value in scaler.state_dict().items()}
        if present and present.keys() <= kept.keys():
            scaler.load_state_dict({name: _like(value, kept[full]) for full, (name, value) in present.items()})
    for name, group in _groups(optimizer):
        if name in kept:
            group["step"] = _like(group.get("step", 0), kept[name])


def _put_slot(slots: MutableMapping[str, Any], name: str, value: Tensor, main: Tensor) -> None:
    present = slots.get(name)
    if isinstance(present, Tensor):
        present.copy_(value)
    else:
        # torch's Adam counts its steps in host memory.
        slots[name] = value.clone() if value.dim() == 0 else value.to(main.device, copy=True)


def _with_inner(optimizer: MegatronOptimizer | None) -> list[tuple[int, LeafOptimizer, InnerOptimizer]]:
    """Return the leaves with their numbers and the optimizers of torch, apex or Transformer Engine inside them."""
    found = ((number, leaf, getattr(leaf, "optimizer", None)) for number, leaf in enumerate(leaves(optimizer)))
    return [(number, leaf, inner) for number, leaf, inner in found if inner is not None]


def _of_leaf(number: int, leaf: LeafOptimizer, inner: InnerOptimizer) -> Iterator[OptimizerParameter]:
    models = _model_params(leaf)
    for group_number, group in enumerate(inner.param_groups):
        for param_number, main in enumerate(group["params"]):
            place = f"optimizer {number}, group {group_number}, parameter {param_number}"
            state = {name: value for name, value in inner.state.get(main, {}).items() if isinstance(value, Tensor)}
            yield OptimizerParameter(
                place, models.get(id(main), main if hasattr(main, "main_grad") else None), main, state
            )


def _model_params(leaf: LeafOptimizer) -> dict[int, Parameter]:
    """Model parameter by the id of its main parameter; precision-aware optimizers keep None in place of those."""
    found: dict[int, Parameter] = {}
    for models, mains in PAIRS:
        pairs = zip(
            chain.from_iterable(getattr(leaf, models, ())), chain.from_iterable(getattr(leaf, mains, ())), strict=True
        )
        found |= {id(main): model for model, main in pairs if main is not None}
    return found


def _groups(optimizer: MegatronOptimizer | None) -> Iterator[tuple[str, MutableMapping[str, Any]]]:
    for number, _, inner in _with_inner(optimizer):
        for place, group in enumerate(inner.param_groups):
            yield f"optimizer {number}, group {place}, step", group


def _like(present: Any, number: float) -> Any:
    return torch.full_like(present, number) if isinstance(present, Tensor) else type(present)(number)
