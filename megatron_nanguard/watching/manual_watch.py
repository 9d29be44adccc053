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


class Watch:
    """A running watch. It ends by `stop`, at the end of its `with` block, or at the first bad values.

    Attributes:
        hit: the first bad values, with copies of the tensors; None as long as there are none.
    """

    def __init__(self, modules: dict[str, Module], above: float | None, file: Path | None) -> None:
        self.hit: BadValues | None = None
        self._file = file
        self._hooks = ModuleHooks(modules, above, self._on_hit)
        self._hooks.begin()

    def stop(self) -> None:
        """Remove all hooks from the model."""
        self._hooks.end()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _on_hit(self, hit: BadValues) -> None:
        self.hit = hit
        log.warning("watch: %s", hit)
        if self._file is not None:
            hit.save(self._file)


def watch(model: Module, pattern: str = ".*", above: float | None = None, *, file: str | Path | None = None) -> Watch:
    """Check every forward and backward of the modules whose name matches, from now on.

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
    return Watch(chosen, above, None if file is None else Path(file))
