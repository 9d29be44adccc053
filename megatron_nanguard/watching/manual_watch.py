"""`megatron_nanguard.watch(model)`: the same checks on any PyTorch model, from a script or a notebook."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from torch.nn import Module

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.watching.bad_values import BadValues
from megatron_nanguard.watching.module_hooks import ModuleHooks

log = logging.getLogger("megatron_nanguard")


def watch(
    model: Module, pattern: str = ".*", above: float | None = None, *, file: str | Path | None = None
) -> ModuleHooks:
    """Check every forward and backward of the modules whose name matches, from now on.

    The watch ends by `stop`, at the end of its `with` block, or at the first bad values, which are its `hit`.

    Args:
        model: any module.
        pattern: regular expression, searched in the names that `model.named_modules()` gives.
        above: magnitude above which finite values count as bad.
        file: the first bad values are saved there; readable with `torch.load(file, weights_only=True)`.
    Raises:
        SettingsError: no module matches.
    Sync: one host read per forward and per backward of a matching module.
    """
    names = dict(model.named_modules())
    chosen = {name: module for name, module in names.items() if re.search(pattern, name)}
    if not chosen:
        known = ", ".join(name for name in list(names)[:8] if name)
        raise SettingsError(f"no module has a name that matches {pattern!r}; there are {known} and so on")

    def on_hit(hit: BadValues) -> None:
        log.warning("watch: %s", hit)
        if file is not None:
            hit.save(Path(file))

    hooks = ModuleHooks(chosen, above, on_hit)
    hooks.begin()
    return hooks
