"""Write a saved call as a directory that reproduces it with torch alone, and read one back without trusting it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.capture import CaughtCall
from megatron_nanguard.arbitration.packing import dtype_text
from megatron_nanguard.arbitration.references import reference_file
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.bundle import SavedCall, SavedTensor
from megatron_nanguard.records.json_form import from_json, to_json

MAX_CALL_BYTES: Final = 4 << 20
log = logging.getLogger("megatron_nanguard")


def write_bundle(directory: Path, call: CaughtCall) -> bool:
    """Write tensors, scripts and, last, `call.json`; each under a temporary name first.

    Returns:
        Whether it is all there; what could not be written costs a line in the log.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, tensors in ((repro.TENSORS_NAME, call.tensors), (repro.FULL_NAME, call.full)):
            if tensors:
                _replace(directory / name, partial(_save, tensors))
        for name, source in (
            ("repro.py", Path(repro.__file__)),
            (repro.REFERENCE_NAME, reference_file(call.saved.operator)),
        ):
            if source is not None:
                _replace(directory / name, partial(shutil.copyfile, source))
        _replace(directory / repro.CALL_NAME, lambda path: path.write_bytes(to_json(call.saved)))
    except (OSError, SafetensorError) as error:
        log.error("cannot write %s: %s; the incident has no reproduction", directory, error)
        return False
    return True


def read_bundle(directory: Path, whole: bool = False) -> CaughtCall:
    """Read a bundle; nothing in it is run, and nothing outside of it is read.

    Args:
        directory: where `call.json` is.
        whole: read the whole inputs too, where they were kept.
    Raises:
        PostmortemError: it is not there, not whole, or not what this package writes.
    """
    path = _inside(directory, repro.CALL_NAME)
    if path.stat().st_size > MAX_CALL_BYTES:
        raise PostmortemError(f"{path} has more than {MAX_CALL_BYTES} bytes")
    saved = from_json(SavedCall, path.read_bytes(), source=str(path))
    if saved.is_redacted:
        raise PostmortemError(f"{directory}: its tensors were stripped by nanguard redact")
    tensors = _read_tensors(directory, repro.TENSORS_NAME, saved.tensors)
    full = _read_tensors(directory, repro.FULL_NAME, saved.full_tensors) if whole else {}
    return CaughtCall(saved, tensors, full)


def _read_tensors(directory: Path, name: str, described: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
    if not described:
        return {}
    path = _inside(directory, name)
    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise PostmortemError(f"{path} is no safetensors file: {error}") from error
    _check(described, tensors, path)
    return tensors


def _inside(directory: Path, name: str) -> Path:
    path = directory / name
    if not path.is_file():
        raise PostmortemError(f"{directory} is no bundle: it has no {name}")
    if path.resolve().parent != directory.resolve():
        raise PostmortemError(f"{path} points out of the bundle, to {path.resolve()}")
    return path


def _check(described: Mapping[str, SavedTensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    if described.keys() != tensors.keys():
        raise PostmortemError(f"{path} holds {sorted(tensors)}, {repro.CALL_NAME} says {sorted(described)}")
    for name, tensor in tensors.items():
        meta = described[name]
        if (meta.shape, meta.dtype) != (tuple(tensor.shape), dtype_text(tensor)):
            raise PostmortemError(f"{path}: {name} is {dtype_text(tensor)} {tuple(tensor.shape)}, not as described")
        if not _is_dense(meta):
            raise PostmortemError(f"{path}: {name} has stride {meta.stride}, which is not dense")


def _is_dense(meta: SavedTensor) -> bool:
    """Whether the elements fill their memory without gaps, in some order of the dims."""
    if len(meta.stride) != len(meta.shape):
        return False
    expected = 1
    for stride, size in sorted(pair for pair in zip(meta.stride, meta.shape, strict=True) if pair[1] != 1):
        if size and stride != expected:
            return False
        expected *= size
    return True


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _replace(target: Path, write: Callable[[Path], object]) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
