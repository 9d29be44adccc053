"""Bundles and other saved tensors in the directory of a run, as far as they can be handled without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.reading import find_incident
from megatron_nanguard.records.bundle import SavedCall
from megatron_nanguard.records.json_form import from_json, to_json

BUNDLE_NAME: Final = "bundle"
CALL_NAME: Final = "call.json"
TENSOR_NAMES: Final = ("tensors.safetensors", "full.safetensors")
"""Files of a bundle. Whatever else holds tensors may be a checkpoint of somebody who gave the wrong directory."""
WATCH_NAME: Final = "watch"
"""Directory of a run in which the first hits of `--nanguard-watch` lie."""


def find_bundle(path: Path) -> Path:
    """Find the bundle of the newest incident under a path.

    Args:
        path: a bundle, or what `nanguard report` takes.
    Raises:
        PostmortemError: there is none; says why that can be.
    """
    if (path / CALL_NAME).exists():
        return path
    bundle = find_incident(path) / BUNDLE_NAME
    if not (bundle / CALL_NAME).exists():
        raise PostmortemError(f"{bundle.parent} has no {BUNDLE_NAME}/: no origin was found, or nothing was captured")
    return bundle


def state_cause(bundle: Path, cause: str) -> None:
    """Write the verdict into a bundle, so that its script knows what to expect.

    Args:
        bundle: its directory.
        cause: code of the likeliest cause.
    Raises:
        PostmortemError: the bundle cannot be read.
        OSError: it cannot be written.
    """
    _rewrite(bundle / CALL_NAME, cause=cause)


def redact(path: Path) -> Iterator[Path]:
    """Delete what this package saved of tensors and samples, and mark the bundles; yield what was deleted or changed.

    Nothing else is touched. Links are left alone, and so is what they point to.

    Raises:
        PostmortemError: the path is no directory, or a bundle cannot be read.
        OSError: a file cannot be deleted.
    """
    if not path.is_dir():
        raise PostmortemError(f"{path} is no directory; give the directory of --nanguard-dir, a run or an incident")
    for file in sorted(path.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        if _holds_tensors(file):
            file.unlink()
            yield file
        elif file.name == CALL_NAME:
            _rewrite(file, is_redacted=True)
            yield file


def _holds_tensors(file: Path) -> bool:
    if file.name in TENSOR_NAMES:
        return (file.parent / CALL_NAME).exists()
    return file.suffix == ".pt" and file.parent.name == WATCH_NAME and file.parents[2].name == "runs"


def _rewrite(file: Path, **changes: object) -> None:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise PostmortemError(f"{file}: cannot be read: {error.strerror}") from error
    saved = replace(from_json(SavedCall, content, source=str(file)), **changes)  # type: ignore[arg-type]
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(to_json(saved))
    os.replace(temporary, file)
