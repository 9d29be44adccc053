"""Reaching into what a module takes and returns: a tensor, or tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def replace_first(
    value: Any, is_wanted: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]
) -> tuple[Any, bool]:
    """Change the first wanted tensor, depth first.

    Returns:
        The same structure with one tensor changed, and whether there was one.
    """
    if isinstance(value, Tensor):
        return (change(value), True) if is_wanted(value) else (value, False)
    if isinstance(value, dict):
        items, found = replace_first(tuple(value.values()), is_wanted, change)
        return dict(zip(value, items, strict=True)), found
    if type(value) not in (tuple, list):
        return value, False
    members, found = [], False
    for member in value:
        changed, found = (member, True) if found else replace_first(member, is_wanted, change)
        members.append(changed)
    return type(value)(members), found
