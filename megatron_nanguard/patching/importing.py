"""Call back when a module of the host has been imported, or at once if it already is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import wrapt


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call ``call(module)`` once ``name`` is imported. The registration cannot be taken back: ``call`` asks itself.

    A function that shadows its module as an attribute of the package is no trap here: sys.modules is asked.
    """
    if name in sys.modules:
        call(sys.modules[name])
    else:
        wrapt.register_post_import_hook(call, name)
