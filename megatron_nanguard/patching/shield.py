"""The one place where errors of our own are caught: training goes on, and the rank reports the fault in its vote."""

from __future__ import annotations

import logging
from types import TracebackType

log = logging.getLogger("megatron_nanguard")


class Shield:
    """Encloses local work inside the host. Never a collective: a rank that skips one makes the others hang."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """The first fault, as ``where: error``; None if there was none."""

    def __call__(self, where: str, *passing: type[Exception]) -> _Shielded:
        """Swallow and log an Exception raised inside; SystemExit, KeyboardInterrupt and ``passing`` go through."""
        return _Shielded(self, where, passing)


class _Shielded:
    def __init__(self, shield: Shield, where: str, passing: tuple[type[Exception], ...]) -> None:
        self._shield, self._where, self._passing = shield, where, passing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        if self._shield.fault is None:
            self._shield.fault = f"{self._where}: {type(error).__name__}: {error}"
            log.error("a fault of nanguard's own in %s; training goes on without it", self._where, exc_info=error)
        return True
