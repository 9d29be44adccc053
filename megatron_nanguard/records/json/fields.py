"""The fields of a record, as the JSON writer, the JSON reader and the JSON Schema need them."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
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
