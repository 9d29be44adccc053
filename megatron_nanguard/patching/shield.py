"""The one place where a fault of ours is caught: training goes on, the rank remembers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

log = logging.getLogger("megatron_nanguard")


class Shield:
    """Stands around local work inside the host. Never around a collective: a rank that skips one hangs the rest."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """The first fault, ``where: error``; None while all is well."""

    @contextlib.contextmanager
    def __call__(self, where: str) -> Iterator[None]:
        """Swallow and log an Exception raised inside; SystemExit and KeyboardInterrupt pass."""
        try:
            yield
        except Exception as error:
            if self.fault is None:
                self.fault = f"{where}: {type(error).__name__}: {error}"
                log.exception("a fault of nanguard's own in %s; training goes on without it", where)
