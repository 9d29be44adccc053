"""Which fault belongs to the step that runs, and how a bad value comes into memory.

SEAMS is "step=name;step=name"; the files beside this one list the names. With TWIN set every fault does what it
does with a value that is harmless.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar

import megatron.training.training as host
from megatron.core.num_microbatches_calculator import get_num_microbatches
from torch import Tensor

SEAMS = dict(text.split("=") for text in filter(None, os.environ["SEAMS"].split(";")))
IS_TWIN = "TWIN" in os.environ
ACCUSED = os.environ["RANK"] == ("1" if os.environ["WORLD_SIZE"] != "1" else "0")
BAD_MICROBATCH = 1

_Value = TypeVar("_Value")

acted: set[str] = set()
_has_fired: set[str] = set()
_microbatch = -1
_pass = 0
_passes_of: dict[str, set[int]] = {}
_is_in_forward_step = False


def is_due(name: str) -> bool:
    """Whether a fault belongs to the step that is running."""
    due = SEAMS.get(str(host.get_args().curr_iteration + 1)) == name
    if due:
        acted.add(name)
    return due


def is_due_everywhere(name: str) -> bool:
    """The same for a fault of one micro-batch."""
    return _microbatch == BAD_MICROBATCH and is_due(name)


def is_due_here(name: str) -> bool:
    """The same for a fault of one rank and one micro-batch."""
    return ACCUSED and is_due_everywhere(name)


def is_due_before(name: str) -> bool:
    """The same, between the micro-batch before and its forward step."""
    return ACCUSED and _microbatch == BAD_MICROBATCH - 1 and is_due(name)


def is_due_in_step(name: str) -> bool:
    """The same, while the forward step runs."""
    return _is_in_forward_step and is_due_here(name)


def is_first_time(name: str) -> bool:
    """Whether it never happened before; a replay is another time."""
    is_first = name not in _has_fired
    _has_fired.add(name)
    return is_first


def is_in_first_passes(name: str, number: int) -> bool:
    """Whether it is one of the first passes in which it can happen; a replay is another pass."""
    passes = _passes_of.setdefault(name, set())
    passes.add(_pass)
    return len(passes) <= number


def worse(bad: _Value, harmless: _Value) -> _Value:
    """What a fault brings in."""
    return harmless if IS_TWIN else bad


def spoil(tensor: Tensor, first: int = 0, count: int | None = None) -> None:
    """NaN in neighbouring elements, as something would write them that no dispatcher sees."""
    size, count = tensor.element_size(), tensor.numel() - first if count is None else count
    ctypes.memset(tensor.data_ptr() + first * size, worse(0xFF, 0), count * size)


def counted(forward_step: Callable[..., Any]) -> Callable[..., Any]:
    """Which micro-batch runs; replays count on."""

    def step(*args: Any, **kwargs: Any) -> Any:
        global _microbatch, _pass, _is_in_forward_step
        _microbatch = (_microbatch + 1) % get_num_microbatches()
        _pass += _microbatch == 0
        _is_in_forward_step = True
        try:
            return forward_step(*args, **kwargs)
        finally:
            _is_in_forward_step = False

    return step
