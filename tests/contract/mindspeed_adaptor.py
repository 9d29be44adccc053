"""Script: import MindSpeed's own adaptor and the guard's hooks in a given order, repatch, and print what is in place.

    python -m tests.contract.mindspeed_adaptor adaptor-first|hooks-first      (MindSpeed and its Megatron on PYTHONPATH)

torch_npu, torchair and MindSpeed's compiled operators are replaced by names without a function.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch

FAKES = ("torch_npu", "acl", "torchair", "mindspeed.op_builder")
PAIR = ("start_grad_sync", "finish_grad_sync")


class FakeModule(ModuleType):
    """Has every name: a class for a capitalized one, else a function that gives back the function it decorates."""

    __path__: ClassVar[list[str]] = []
    __version__ = "2.6.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return type(name, (), {"__init__": lambda self, *args, **kwargs: None, "load": lambda self: FakeModule("")})
        return lambda *args, **kwargs: args[0] if args and callable(args[0]) else lambda decorated: decorated


class FakeImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what needs an accelerator."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_fake = any(name == fake or name.startswith(f"{fake}.") for fake in FAKES)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_fake else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return FakeModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def tolerant(register: Callable[..., Any]) -> Callable[..., Any]:
    """A registration with torch.library that may fail: the operator itself is missing here."""

    def attempt(*args: Any, **kwargs: Any) -> Any:
        def decorate(function: Any) -> Any:
            try:
                return register(*args, **kwargs)(function)
            except Exception:
                return function

        return decorate

    return attempt


def in_place() -> dict[str, object]:
    """States of the points that are neither there nor expected to be, and what the bucket points stand on."""
    import megatron_nanguard
    from megatron_nanguard.patch_points import POINTS

    hooks = megatron_nanguard._hooks
    assert hooks is not None
    states = {target.path: hooks.engine.state(target).value for point in POINTS for target in point.targets}
    buffers = importlib.import_module("megatron.core.distributed.param_and_grad_buffer")
    group = vars(buffers._ParamAndGradBucketGroup)
    below = {name: getattr(group[name], "__wrapped__", group[name]).__module__ for name in PAIR}
    return {
        "declined": dict(hooks.engine.declined),
        "lost": {path: state for path, state in states.items() if state not in ("active", "waiting", "absent")},
        "halves of the reduction are from one package": len({path.partition(".")[0] for path in below.values()}) == 1,
    }


def main(order: str) -> None:
    """Print one line of JSON: after the imports, and after each of two repatches."""
    sys.argv = sys.argv[:1]
    sys.meta_path.insert(0, FakeImporter())
    vars(torch)["npu"] = FakeModule("torch.npu")
    torch.library.impl = tolerant(torch.library.impl)  # type: ignore[misc]
    torch.library.register_fake = tolerant(torch.library.register_fake)  # type: ignore[misc]
    names = ["mindspeed.megatron_adaptor", "megatron_nanguard"]
    adaptor, _ = [importlib.import_module(name) for name in (names if order == "adaptor-first" else names[::-1])][
        :: 1 if order == "adaptor-first" else -1
    ]
    for name in ("megatron.core", "megatron.core.optimizer", "megatron.core.pipeline_parallel.schedules"):
        importlib.import_module(name)
    found = [in_place()]
    for _ in range(2):
        adaptor.repatch({"optimization_level": 0})
        found.append(in_place())
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
