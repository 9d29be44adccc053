"""One change to every text of a form, whatever the form is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

Form = TypeVar("Form")


def each_text(form: Form, change: Callable[[str], str]) -> Form:
    """The same form with its texts changed.

    Args:
        form: a text, a tuple, list or dictionary, or a data class, and whatever these hold.
        change: from the old text to the new one; keys of dictionaries stay.
    """
    value: Any = form
    if isinstance(value, str):
        value = change(value)
    elif isinstance(value, (tuple, list)):
        value = type(value)(each_text(item, change) for item in value)
    elif isinstance(value, dict):
        value = {key: each_text(item, change) for key, item in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: each_text(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        value = dataclasses.replace(value, **parts)
    return value  # type: ignore[no-any-return]
