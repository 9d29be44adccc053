"""The training program we are in: versions, arguments and their help texts, step number, its own NaN checks."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_nanguard.records.run.fingerprint import HostChange

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import ModelChunk

PACKAGES = ("torch", "megatron-core", "megatron-nanguard", "numpy", "torch-npu", "transformer-engine", "apex")

_PERCENT = re.compile(r"%(%|\(\w+\))?")
_NUMBER = re.compile(r"^(MAJOR|MINOR|PATCH) *= *(\d+)", re.MULTILINE)


def core_version() -> str | None:
    """Return the version of the Megatron core that is imported, such as 0.19.2; None if it has none.

    While the package is being imported, its version comes from the text of the file: up to 0.11 the gradient buffers
    are imported before it.

    Source: megatron/core/package_info.py
    """
    found = sys.modules.get("megatron.core.package_info")
    return _version_in_file() if found is None else getattr(found, "__version__", None)


def _version_in_file() -> str | None:
    """Read the version from package_info.py of the package that is being imported, without running the file."""
    with suppress(OSError):
        text = Path(core_folder() or "", "package_info.py").read_text(encoding="utf-8")
        numbers = dict(_NUMBER.findall(text))
        if numbers.keys() >= {"MAJOR", "MINOR", "PATCH"}:
            return ".".join(numbers[name] for name in ("MAJOR", "MINOR", "PATCH"))
    return None


def core_folder() -> str | None:
    """Return the folder of the Megatron core that is imported, or is being imported; None where there is none."""
    return next(iter(getattr(sys.modules.get("megatron.core"), "__path__", ())), None)


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that matter; for Megatron core, the version of what is imported."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if core_version() is not None:
        found["megatron-core"] = str(core_version())
    found["python"] = sys.version.split()[0]
    return found


def arguments() -> Namespace | None:
    """Return Megatron's global arguments; None for trainers without them.

    Source: megatron/training/global_vars.py
    """
    return getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)


def log_step() -> int | None:
    """Return the step that is running, as the training log counts it; None for trainers without a step number.

    Source: megatron/training/training.py, train: ``args.curr_iteration`` is zero-based, the log adds one
    """
    found = getattr(arguments(), "curr_iteration", None)
    return None if found is None else int(found) + 1


def set_log_step(step: int) -> None:
    """Set the number of the step that is running, for trainers that have one."""
    if log_step() is not None:
        arguments().curr_iteration = step - 1  # type: ignore[union-attr]


def save_directory() -> str | None:
    """``--save``; None when nothing is saved."""
    return getattr(arguments(), "save", None)


def mend_help_texts(parser: ArgumentParser) -> None:
    """Double every percent sign that argparse would take for a broken placeholder: it then prints no `--help` at all.

    Source: megatron/core/transformer/transformer_config.py, moe_paged_stash_buffer_size_factor_cuda: "1.10 = 10%)",
        from 0.19 on the help text of an option
    """
    for action in parser._actions:
        if action.help:
            action.help = _PERCENT.sub(lambda found: found[0] if found[1] else "%%", action.help)


class HostChecks:
    """Switches Megatron's own NaN checks off and on: they read the device per bucket, and raise on one rank alone."""

    def __init__(self) -> None:
        self._switched: list[tuple[object, str, object]] = []
        """Who held an option, its name, and its value before."""

    def switch_off(self, chunks: Sequence[ModelChunk]) -> None:
        """Switch off the bucket check of each chunk; without a rerun machine also the loss check of the scripts.

        Source: megatron/core/distributed/param_and_grad_buffer.py, start_grad_sync
        """
        for chunk in chunks:
            self._set(getattr(chunk, "ddp_config", None), "check_for_nan_in_grad")
        if "megatron.core.rerun_state_machine" not in sys.modules:
            self._set(arguments(), "check_for_nan_in_loss_and_grad")

    def restore(self) -> None:
        """Restore the options of Megatron."""
        while self._switched:
            setattr(*self._switched.pop())

    def changes(self) -> tuple[HostChange, ...]:
        """Return the options that were changed, each once."""
        names = dict.fromkeys(name for _, name, _ in self._switched)
        return tuple(
            HostChange(name, "True", "False", "it would raise on one rank alone; the guard takes the check over")
            for name in names
        )

    def _set(self, holder: object, name: str) -> None:
        if getattr(holder, name, False):
            self._switched.append((holder, name, getattr(holder, name)))
            setattr(holder, name, False)


def is_nan_check(rejection_func: object) -> bool:
    """Say whether a ``rejection_func`` of ``validate_result`` looks for NaN or Inf, as for losses and buckets."""
    import torch  # the patch points read this file before torch is imported

    return rejection_func in (torch.isnan, torch.isinf)


def kernel_backends() -> dict[str, str]:
    """Return the implementations that the arguments choose; none for trainers without arguments."""
    names = ("transformer_impl", "attention_backend", "moe_token_dispatcher_type", "optimizer", "cuda_graph_impl")
    return {name: str(getattr(arguments(), name)) for name in names if hasattr(arguments(), name)}


def option_values(names: Sequence[str]) -> dict[str, str]:
    """Return some arguments as text, members of enums by their names; none for trainers without arguments."""
    found = {name: getattr(arguments(), name) for name in names if hasattr(arguments(), name)}
    return {name: str(getattr(value, "name", value)) for name, value in found.items()}


def trainer_tolerates_skips() -> bool:
    """Say whether the training loop treats an unsuccessful step as skipped; others raise or assert.

    Source: megatron/training/training.py; Megatron-Bridge and ms-swift do the same, verl and slime do not
    """
    return any(name in sys.modules for name in ("megatron.training.training", "megatron.bridge", "swift.megatron"))
