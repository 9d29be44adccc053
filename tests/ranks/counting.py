"""What a rank asks of other ranks and of its device, counted below torch's Python interface.

A TorchDispatchMode sees every operator of the thread that entered it, and of autograd's threads, which inherit it. The
process groups count their own collectives, whichever thread they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""An operator with one of them makes the host wait: `_local_scalar_dense`, `equal`, `nonzero`, masks as indices."""


class Counting(TorchDispatchMode):
    """Context manager around training; `step_begins` closes the count of the step before.

    Attributes:
        steps: operators of each step by name; what ran inside a backward pass has "backward " before it.
        collectives: of each step, as the process groups counted them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Counter[str]] = []
        self.collectives: list[int] = []
        self._current: Counter[str] = Counter()
        self._before: int | None = None
        for name in ("cpu", "to", "tolist", "numpy"):
            setattr(Tensor, name, self._counted(getattr(Tensor, name), name))

    def step_begins(self) -> None:
        """Close the step before; what came before the first one is forgotten."""
        if self._before is not None:
            self.step_ends()
        self._current = Counter()
        self._before = _collectives_so_far()

    def step_ends(self) -> None:
        """Close the step that is open."""
        assert self._before is not None
        self.steps.append(self._current)
        self.collectives.append(_collectives_so_far() - self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if name.startswith("c10d::") or (READING_TAGS & set(func.tags) and not _is_on_host(args[0])):
            self._count(name)
        return func(*args, **(kwargs or {}))

    def _counted(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Copies to the host, which on a CPU are no operator of their own."""

        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            # With a torch.device as target it stays open whether it is the host: cpurun's device calls itself cpu.
            is_read = name != "to" or any(isinstance(at, str) and at == "cpu" for at in (*args, *kwargs.values()))
            if is_read and not _is_on_host(tensor):
                self._count(f"Tensor.{name}")
            found = original(tensor, *args, **kwargs)
            if is_read and isinstance(found, Tensor):
                found.is_on_host = True  # reading it again costs the device nothing
            return found

        return counted

    def _count(self, name: str) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        self._current[f"backward {name}" if in_backward else name] += 1


def _is_on_host(tensor: Any) -> bool:
    return getattr(tensor, "is_on_host", False)


def _collectives_so_far() -> int:
    groups = torch.distributed.distributed_c10d._world.pg_names
    return sum(group._get_sequence_number_for_group() for group in groups)
