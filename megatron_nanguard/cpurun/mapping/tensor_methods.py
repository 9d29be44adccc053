"""Methods of tensors: `is_cuda` is True, moving to the device is free, moving to the host makes a copy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function
from megatron_nanguard.cpurun.mapping.device_arguments import current, is_cuda


def map_tensor_methods(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Wrap the moves, and the questions that Megatron asks to tell device tensors from host tensors."""
    tensor = torch.Tensor
    changes.wrap(tensor, "to", lambda original: _moving(original, torch))
    changes.wrap(tensor, "cuda", lambda original: lambda self, *args, **kwargs: _to_device(self))
    changes.wrap(tensor, "cpu", lambda original: lambda self, *args, **kwargs: _to_host(self, original))
    changes.wrap(tensor, "type", _typed)
    # MoE token dispatchers and optimizers check it before they copy to the host.
    changes.put(tensor, "is_cuda", property(lambda self: _is_on_cpu(self) and self.layout == torch.strided))
    changes.wrap(
        tensor, "get_device", lambda original: lambda self: current.index if _is_on_cpu(self) else original(self)
    )
    changes.wrap(tensor, "pin_memory", lambda original: lambda self, device=None: self)
    changes.wrap(tensor, "is_pinned", lambda original: lambda self, device=None: False)
    changes.wrap(tensor, "record_stream", lambda original: lambda self, stream: None)


def _is_on_cpu(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def _to_device(tensor: Any) -> Any:
    return tensor if _is_on_cpu(tensor) else tensor.to("cpu")


def _to_host(tensor: Any, original: Function) -> Any:
    """Copy, as a move from device to host does: an alias would change with the next step."""
    return tensor.clone() if _is_on_cpu(tensor) else original(tensor)


def _moving(original: Function, torch: ModuleType) -> Function:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else None)
        if is_cuda(target):
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            else:
                args = ("cpu", *args[1:])
        elif isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu" and _is_on_cpu(self):
            kwargs.setdefault("copy", True)
        return original(self, *args, **kwargs)

    return to


def _typed(original: Function) -> Function:
    """Report `torch.cuda.FloatTensor` and the like: Megatron's optimizers accept parameters by that string."""

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name = original(self)
            return name.replace("torch.", "torch.cuda.", 1) if _is_on_cpu(self) else name
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return original(self, dtype, *args, **kwargs)

    return type_
