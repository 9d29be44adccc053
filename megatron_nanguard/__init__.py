"""megatron_nanguard: when the gradient norm turns NaN, say which rank, which parameter, which group, and why.

``import megatron_nanguard`` registers import hooks and nothing else: neither torch nor Megatron is imported. The guard
starts with ``--nanguard`` on the command line of a Megatron script, or with ``NANGUARD=1``; ``NANGUARD=0`` beats both.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from megatron_nanguard.version import __version__

if TYPE_CHECKING:
    from megatron_nanguard.guard.hooks import Hooks
    from megatron_nanguard.reloading.step import reload_step
    from megatron_nanguard.tracing.callable import trace_nan
    from megatron_nanguard.watching import check_grads, watch

__all__ = ["__version__", "check_grads", "disable", "enable", "reload_step", "trace_nan", "watch"]

_hooks: Hooks | None = None


def enable() -> None:
    """Register the patch points, as the import does.

    Idempotent. Works before or after Megatron is imported; to be called before the model is built. ``NANGUARD=0``
    leaves none of them but the options, and these only where the command line has some: argparse would refuse them.
    """
    global _hooks
    is_off = os.environ.get("NANGUARD") == "0"
    if _hooks is not None or (is_off and not any(word.startswith("--nanguard") for word in sys.argv)):
        return
    from megatron_nanguard.guard.hooks import Hooks

    _hooks = Hooks.of_options_alone() if is_off else Hooks()
    _hooks.install()


def disable() -> list[str]:
    """Put back the very objects that were there, and switch Megatron's own NaN checks on again.

    Returns:
        The functions that somebody else has wrapped since: their wrapper stays, ours under it passes through.
    """
    global _hooks
    if _hooks is None:
        return []
    kept, _hooks = _hooks.remove(), None
    return kept


def __getattr__(name: str) -> Any:
    """What is called by hand: it needs torch, which the import itself leaves alone."""
    if name in ("check_grads", "watch"):
        return getattr(importlib.import_module("megatron_nanguard.watching"), name)
    if name == "reload_step":
        return importlib.import_module("megatron_nanguard.reloading.step").reload_step
    if name == "trace_nan":
        return importlib.import_module("megatron_nanguard.tracing.callable").trace_nan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


enable()
