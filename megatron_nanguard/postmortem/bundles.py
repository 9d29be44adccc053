"""Find the bundle of an incident, and delete what is confidential from a run, both without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.search import find_incident, step_and_number
from megatron_nanguard.records.json.record_file import read_record, write_record
from megatron_nanguard.records.run.fingerprint import FINGERPRINT_NAME, Fingerprint, without_values
from megatron_nanguard.records.step.capture import DIRECTORY, TENSORS_SUFFIX, CaptureFile, without_samples
from megatron_nanguard.records.suspect_call import SavedCall, without_texts

BUNDLE_NAME: Final = "bundle"
CALL_NAME: Final = "call.json"
TENSOR_NAMES: Final = ("tensors.safetensors", "full.safetensors")
"""Tensor files of a bundle. `redact` deletes no others: they may be checkpoints, if the wrong directory is given."""
WATCH_NAME: Final = "watch"
"""Directory of a run with the first bad values that `--nanguard-watch` found."""


_UNFINISHED: Final = re.compile(r"\.(.+)\.\d+")
"""Name of a file until it is complete: that of the file, with the id of the process."""


def find_bundle(path: Path) -> Path:
    """Find the bundle of the newest incident under a path.

    Args:
        path: a bundle, or any path that `nanguard report` takes.
    Raises:
        PostmortemError: there is no bundle; the message says why this can be.
    """
    if os.path.exists(path / CALL_NAME):
        return path
    bundle = find_incident(path) / BUNDLE_NAME
    if not os.path.exists(bundle / CALL_NAME):
        raise PostmortemError(f"{bundle.parent} has no {BUNDLE_NAME}/: no origin was found, or nothing was captured")
    return bundle


def is_runnable(bundle: Path) -> bool:
    """Whether a bundle holds a call and its inputs; inputs are missing if they could not be saved or were redacted."""
    return (bundle / CALL_NAME).exists() and (bundle / TENSOR_NAMES[0]).exists()


def write_cause(bundle: Path, cause: str) -> None:
    """Add the likeliest cause to a bundle; its script then says whether the result agrees with it.

    Args:
        bundle: its directory.
        cause: code of the cause.
    Raises:
        PostmortemError: the bundle cannot be read.
        OSError: it cannot be written.
    """
    _rewrite(bundle / CALL_NAME, lambda call: replace(call, cause=cause))


def redact(path: Path) -> Iterator[Path]:
    """Delete what may be confidential: saved tensors and samples, and texts among arguments.

    Texts are values on the command line, arguments of the script, and strings that a saved call was given. Numbers,
    names and paths of modules stay. Nothing else is touched; symbolic links are not followed and not deleted.

    Yields:
        Each file that was deleted or changed.
    Raises:
        PostmortemError: the path is no directory. Or some files could not be stripped; it names them, and is raised
            after all other files were stripped.
    """
    if not os.path.isdir(path):
        raise PostmortemError(f"{path} is no directory; give the directory of --nanguard-dir, a run or an incident")
    failed = []
    for file in sorted(path.rglob("*")):
        try:
            if _strip(file):
                yield file
        except OSError as error:
            failed.append(f"{file}: cannot be stripped: {error.strerror}")
        except PostmortemError as error:
            failed.append(str(error))
    if failed:
        raise PostmortemError("; ".join(failed))


def _strip(file: Path) -> bool:
    """Delete or change one file if it holds something confidential; return whether it does."""
    if file.is_symlink() or not file.is_file():
        return False
    unfinished = _UNFINISHED.fullmatch(file.name)
    if unfinished is not None:
        # A process that was killed while it wrote has left it.
        is_ours = _holds_tensors(file.with_name(unfinished[1])) or _is_record(file.with_name(unfinished[1]))
    else:
        is_ours = _holds_tensors(file)
    if is_ours:
        file.unlink()
        return True
    if file.name == CALL_NAME:
        _rewrite(file, lambda call: without_texts(replace(call, is_redacted=True)))
        return True
    if file.name == FINGERPRINT_NAME and file.parents[1].name == "runs":
        write_record(file, without_values(read_record(Fingerprint, file)))
        return True
    if file.suffix == ".json" and _is_captured(file):
        write_record(file, without_samples(read_record(CaptureFile, file)))
        return True
    return False


def _is_record(file: Path) -> bool:
    """Whether a file of this name is one that is rewritten."""
    return file.name in (CALL_NAME, FINGERPRINT_NAME) or (file.suffix == ".json" and _is_captured(file))


def _holds_tensors(file: Path) -> bool:
    if file.name in TENSOR_NAMES:
        is_bundle = _is_incident(file.parents[1]) or file.parents[1].name == "peer"
        return (file.parent / CALL_NAME).exists() or is_bundle
    if file.suffix == TENSORS_SUFFIX:
        return _is_captured(file) and (file.with_suffix(".json").exists() or _is_incident(file.parents[1]))
    return file.suffix == ".pt" and file.parent.name == WATCH_NAME and file.parents[2].name == "runs"


def _is_captured(file: Path) -> bool:
    return file.parent.name == DIRECTORY and re.fullmatch(r"rank\d{5,}", file.stem) is not None


def _is_incident(directory: Path) -> bool:
    """Whether this is the directory of an incident by its name: a process may be killed before it wrote a record."""
    return directory.parent.name == "incidents" and step_and_number(directory) != (-1, 0)


def _rewrite(file: Path, change: Callable[[SavedCall], SavedCall]) -> None:
    write_record(file, change(read_record(SavedCall, file)))
