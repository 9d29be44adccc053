"""What the optimizers keep per parameter: main parameters, or shards of them, and moments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.megatron_api.optimizers import leaves

PAIRS = (
    ("float16_groups", "fp32_from_float16_groups"),
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
    ("model_fp32_groups", "shard_fp32_groups"),
)
"""Lists of groups, model parameters beside main parameters: without and with the distributed optimizer.

Source: megatron/core/optimizer/optimizer.py, Float16OptimizerWithFloat16Params; distrib_optimizer.py
"""


class Kept(NamedTuple):
    """What is kept for one parameter on this rank.

    Attributes:
        place: where it stands, such as "optimizer 0, group 1, parameter 2".
        param: the model parameter; None where the optimizer does not tell.
        main: what the optimizer updates: a copy or shard of the parameter in higher precision, or itself.
        state: its other tensors by name, such as exp_avg.
    """

    place: str
    param: Parameter | None
    main: Tensor
    state: dict[str, Tensor]

    @property
    def is_copy(self) -> bool:
        """Whether `main` is memory of its own, so that it may differ from the model's weight."""
        return self.param is None or self.main.untyped_storage().data_ptr() != self.param.untyped_storage().data_ptr()


def kept_by(optimizer: Any) -> list[Kept]:
    """All of it, in the order of the optimizers and their groups; nothing where the optimizer is not known."""
    if optimizer is None:
        return []
    return [one for number, leaf in enumerate(leaves(optimizer)) for one in _of_leaf(number, leaf)]


def _of_leaf(number: int, leaf: Any) -> Iterator[Kept]:
    inner = getattr(leaf, "optimizer", None)
    if inner is None:
        return
    models = _model_params(leaf)
    for group_number, group in enumerate(inner.param_groups):
        for param_number, main in enumerate(group["params"]):
            place = f"optimizer {number}, group {group_number}, parameter {param_number}"
            state = {name: value for name, value in inner.state.get(main, {}).items() if isinstance(value, Tensor)}
            yield Kept(place, models.get(id(main), main if hasattr(main, "main_grad") else None), main, state)


def _model_params(leaf: Any) -> dict[int, Parameter]:
    """Model parameter by the id of its main parameter; precision-aware optimizers keep None in place of those."""
    found: dict[int, Parameter] = {}
    for models, mains in PAIRS:
        pairs = zip(
            chain.from_iterable(getattr(leaf, models, ())), chain.from_iterable(getattr(leaf, mains, ())), strict=True
        )
        found |= {id(main): model for model, main in pairs if main is not None}
    return found
