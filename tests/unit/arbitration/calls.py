"""Calls caught as the tracer would: a dispatch mode that numbers operators and tells the catcher of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.arbitration.call_catcher import CAP_BYTES, CallCatcher, CaughtCall
from megatron_nanguard.arbitration.function_catcher import FunctionCatcher
from megatron_nanguard.tracing.calls.call_stack import CallStack

Spoil = Callable[[Any], Any]


class Catching(TorchDispatchMode):
    """Numbers operators from 0; what one of them returns can be spoiled, as a faulty kernel would."""

    def __init__(self, catcher: CallCatcher, spoiled: int | None = None, spoil: Spoil | None = None) -> None:
        super().__init__()
        self.names: list[str] = []
        self._catcher, self._spoiled, self._spoil = catcher, spoiled, spoil

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        event = len(self.names)
        self.names.append(str(func))
        self._catcher.before(event, func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        if event == self._spoiled and self._spoil is not None:
            out = self._spoil(out)
        self._catcher.after(out)
        return out


def catch(
    step: Callable[[], Any], operator: str, *, spoil: Spoil | None = None, cap_bytes: int = CAP_BYTES
) -> CaughtCall:
    """Run a step twice, which must do the same both times, and catch the first call of an operator the second time."""
    first = Catching(CallCatcher(frozenset()))
    with first:
        step()
    event = first.names.index(operator)
    catcher = CallCatcher(frozenset({event}), cap_bytes, rank=5)
    with Catching(catcher, event, spoil):
        step()
    return catcher.calls[event]


@contextmanager
def listening(name: str, *arguments: Any, **options: Any) -> Iterator[FunctionCatcher]:
    """A catcher of a Function, which hears of calls as in a traced pass."""
    catcher = FunctionCatcher(name, *arguments, **options)
    with CallStack({}, lambda function, *args: function(*args)).following(catcher):
        yield catcher


def bad_first_element(out: Any) -> Any:
    """A result with a NaN at its very first place."""
    out = out.clone()
    out.view(-1)[0] = float("nan")
    return out
