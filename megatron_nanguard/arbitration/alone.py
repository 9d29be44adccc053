"""Keep a call that one rank makes alone from entering a collective, where it would wait for ranks that never come."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.arbitration.call_catcher import COMMUNICATES, COMMUNICATION
from megatron_nanguard.arbitration.repro import CannotRun


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every communication raises CannotRun before it begins."""

    def __init__(self) -> None:
        """Nothing to choose."""
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled helpers compiled: their kernels are what is run again."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run what is no communication."""
        if getattr(func, "namespace", "") in COMMUNICATION:
            raise CannotRun(COMMUNICATES)
        return func(*args, **(kwargs or {}))
