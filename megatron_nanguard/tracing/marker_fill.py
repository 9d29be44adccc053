"""A pass in which all fresh memory holds the marker, and nothing else is different: does the fault come back?"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.tracing import marker
from megatron_nanguard.tracing.recording.operators import is_empty


class MarkerFill(TorchDispatchMode):
    """Fills what every ``empty`` hands out. A step that reads memory nobody wrote turns bad; a sound one stays sound.

    Sync: none.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled helpers stay compiled: run eagerly they would give other bits."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_empty(func) and isinstance(result, Tensor) and result.is_contiguous():
            marker.fill(result)
        return result
