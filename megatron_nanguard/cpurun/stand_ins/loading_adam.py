"""Lets the distributed optimizer load a checkpoint into torch's Adam.

Megatron expects a "step" in the optimizer's state, which torch's Adam leaves empty before its first step. After
loading, all parameters would share one "step" tensor that holds 0. So the state is filled before saving or loading, and
each parameter gets its own step afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function


def let_adam_be_loaded(changes: ChangedAttributes, distrib_optimizer: ModuleType) -> None:
    """Wrap saving and loading of the optimizer's state.

    Source: megatron/core/optimizer/distrib_optimizer.py, DistributedOptimizer
    """
    owner = getattr(distrib_optimizer, "DistributedOptimizer", None)
    if owner is not None and not getattr(distrib_optimizer, "HAVE_APEX_OR_TE", True):
        changes.wrap(owner, "state_dict", _with_filled_state)
        changes.wrap(owner, "load_state_dict", _with_own_step)


def _parameters(optimizer: torch.optim.Adam) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield group, parameter


def _with_filled_state(original: Function) -> Function:
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        adam = self.optimizer
        if isinstance(adam, torch.optim.Adam) and not adam.state:
            for _, parameter in _parameters(adam):
                adam.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        return original(self, *args, **kwargs)

    return state_dict


def _with_own_step(original: Function) -> Function:
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if isinstance(self.optimizer, torch.optim.Adam):
            for group, parameter in _parameters(self.optimizer):
                self.optimizer.state[parameter]["step"] = torch.tensor(float(group["step"]))
        return result

    return load_state_dict
