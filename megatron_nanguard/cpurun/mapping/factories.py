"""Functions that make tensors or load them: a cuda device becomes the CPU."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function
from megatron_nanguard.cpurun.mapping.device_arguments import is_cuda, made_for_cpu, on_cpu

FACTORIES = (
    "empty",
    "zeros",
    "ones",
    "full",
    "tensor",
    "as_tensor",
    "asarray",
    "arange",
    "range",
    "linspace",
    "logspace",
    "eye",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "empty_strided",
    "empty_permuted",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "sparse_coo_tensor",
    "hann_window",
    "hamming_window",
    "bartlett_window",
    "blackman_window",
    "kaiser_window",
)
METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")


def map_factories(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Make tensors on the CPU where Megatron passes `device="cuda"`, a device index, or `pin_memory`."""
    for name in FACTORIES:
        changes.wrap(torch, name, making_on_cpu)
    for name in METHODS:
        changes.wrap(torch.Tensor, name, making_on_cpu)
    changes.wrap(torch, "load", _loading_to_cpu)
    contexts = importlib.import_module("torch.utils._device")  # torch imports it at the first `with`
    # `with torch.device("cuda"):` sets the device of the tensors made inside.
    changes.wrap(contexts.DeviceContext, "__init__", made_for_cpu)
    changes.put(torch, "Generator", _generator_class(torch.Generator))


def making_on_cpu(original: Function) -> Function:
    """Wrap a function that takes `device` and `pin_memory` by keyword."""

    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return original(*args, **kwargs)

    return make


def _loading_to_cpu(original: Function) -> Function:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(f, _location(map_location), *args, **kwargs)

    return load


def _location(map_location: Any) -> Any:
    """The `map_location` of `torch.load`: None would load a tensor to the device it was saved from."""
    if map_location is None or is_cuda(map_location):
        return "cpu"
    if isinstance(map_location, dict):
        return {saved: on_cpu(target) for saved, target in map_location.items()}
    return map_location


def _generator_class(real: Any) -> type:
    class Generator(real):  # type: ignore[misc]  # the class is a value here
        def __new__(cls, device: Any = "cpu") -> Any:
            return real.__new__(cls, device=on_cpu(device))

    return Generator
