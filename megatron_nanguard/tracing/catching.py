"""What the tracer tells of each operator to somebody who wants to keep a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Catcher(Protocol):
    """Called inside the tracer's dispatch, where its own operators are not traced."""

    def before(self, event: int, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An operator that will be the event of this number is about to run."""

    def after(self, out: Any) -> None:
        """It has run."""
