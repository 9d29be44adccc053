"""Script: guard the first two of three steps, then `disable()`; each rank writes down what it found meanwhile."""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import megatron.training.training as host
import torch
from megatron.core.optimizer.optimizer import ChainedOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_model_config

import megatron_nanguard
from megatron_nanguard.cpurun import pretrain_gpt
from megatron_nanguard.patch_points import POINTS

LAST_GUARDED = 2

told: dict[str, Any] = {"bucket_check": [], "calls_of_foreign": 0}
steps: list[int] = []
engines: list[Any] = []


def places() -> Iterator[tuple[str, Any]]:
    """Every function that is patched and every copy of it, with what stands there now."""
    for target in (target for point in POINTS for target in point.targets):
        for path in (target.path, *target.copies):
            module, _, attribute = path.partition(":")
            owner: Any = sys.modules.get(module)
            for name in attribute.split("."):
                owner = None if owner is None else vars(owner).get(name)
            if owner is not None:
                yield path, owner


def held_by_megatron() -> Iterator[tuple[str, Any]]:
    """Everything that a module of Megatron, or a class in one, holds under any name."""
    for module in [module for name, module in sys.modules.items() if name.startswith("megatron.")]:
        for name, value in vars(module).items():
            yield f"{module.__name__}:{name}", value
            for attribute, inside in vars(value).items() if isinstance(value, type) else ():
                yield f"{module.__name__}:{name}.{attribute}", inside


def left_over() -> list[str]:
    """Where a wrapper of ours is held."""
    return [path for path, value in held_by_megatron() if "__nanguard_point__" in getattr(value, "__dict__", {})]


def originals_held() -> list[str]:
    """Where a function that we patch is held as it was: after `enable()` whoever calls it from there passes us by."""
    originals = {id(value) for value in before.values()}
    return [path for path, value in held_by_megatron() if id(value) in originals]


def differing() -> list[str]:
    """Places that no longer hold what they held before `enable()`."""
    return [path for path, value in places() if value is not before[path]]


def wrap_on_top() -> Callable[..., Any]:
    """Somebody else's wrapper around ours."""
    ours = ChainedOptimizer.get_grad_norm

    def get_grad_norm(self: Any) -> Any:
        told["calls_of_foreign"] += 1
        return ours(self)

    ChainedOptimizer.get_grad_norm = get_grad_norm
    return get_grad_norm


def stepping(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the flags of the host, and switch the guard off after a step."""

    def stepped(*args: Any, **kwargs: Any) -> Any:
        [chunk] = args[2]
        returned = train_step(*args, **kwargs)
        told["bucket_check"].append(chunk.ddp_config.check_for_nan_in_grad)
        steps.append(len(steps) + 1)
        if steps[-1] == LAST_GUARDED:
            switch_off(chunk)
        return returned

    return stepped


def copy_of_config(config: Any) -> list[bool]:
    """Whether a copy of a config in use holds the very functions of Megatron, a patched one among them."""
    config.grad_scale_func = None  # a method of the optimizer, whose process groups nobody can copy
    config.schedule = get_forward_backward_func()
    copied = copy.deepcopy(config)
    return [getattr(copied, name) is getattr(config, name) for name in ("schedule", "finalize_model_grads_func")]


def switch_off(chunk: Any) -> None:
    """Copy the config, wrap on top of us, disable."""
    told["copied"] = copy_of_config(get_model_config(chunk))
    foreign = wrap_on_top()
    engine = megatron_nanguard._hooks.engine
    told["kept"] = megatron_nanguard.disable()
    told["fired"] = dict(engine.fired)
    told["foreign_stands"] = vars(ChainedOptimizer)["get_grad_norm"] is foreign
    told["differing"] = differing()
    told["left_over"] = left_over()
    told["threads"] = [thread.name for thread in threading.enumerate() if "nanguard" in thread.name]
    engines.append(engine)


before = dict(places())
told["originals_held_before"] = originals_held()
megatron_nanguard.enable()
told["patched"] = differing()
told["originals_held"] = originals_held()
host.train_step = stepping(host.train_step)
pretrain_gpt.main()
told["fired_at_the_end"] = dict(engines[0].fired)
told["steps"] = steps
Path(f"rank{torch.distributed.get_rank()}.json").write_text(json.dumps(told))
