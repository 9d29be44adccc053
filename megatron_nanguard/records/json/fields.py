"""The fields of a record, and walks through its dataclasses, tuples, lists and dictionaries to the values in them."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable
from typing import Any, Final

FLOAT_TAG: Final = "$float"
TAGGED_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The numbers that JSON lacks, by their tags."""


@functools.cache
def fields_of(cls: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """The fields of a record: attribute, JSON key, resolved type hint, and whether the key may be missing."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (
            field.name,
            field.metadata.get("key", field.name),
            hints[field.name],
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    )


def leaves_of(value: Any) -> list[Any]:
    """List every value that holds no others, in the order of the fields."""
    leaves: list[Any] = []
    map_leaves(value, leaves.append, lambda record, fields: None)
    return leaves


def map_leaves(
    value: Any,
    change: Callable[[Any], Any],
    rebuild: Callable[[Any, dict[str, Any]], Any] = lambda record, fields: dataclasses.replace(record, **fields),
) -> Any:
    """Make the same form with other values in it.

    Args:
        value: a record, a tuple, a list, a dictionary, or a value that holds no others.
        change: from an old value to the new one; keys of dictionaries stay.
        rebuild: makes what takes the place of a dataclass, from the old one and its changed fields by name.
    """
    if isinstance(value, (tuple, list)):
        items = [map_leaves(item, change, rebuild) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: map_leaves(item, change, rebuild) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return rebuild(value, {one.name: map_leaves(getattr(value, one.name), change, rebuild) for one in fields})
    return change(value)
