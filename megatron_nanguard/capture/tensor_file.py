"""Write a safetensors file one tensor at a time, so that host memory need not hold a second copy of a rank's state.

8 bytes: length of the header | header, JSON: {"weight": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]}}
| the elements of all tensors, row by row, in the order of the header
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from megatron_nanguard.records.json.record_file import atomic_write

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
DTYPES: Final = {getattr(torch, name): code for name, code in _NAMES.items() if hasattr(torch, name)}
"""Dtypes that the file can hold, with their names in the format."""


def can_hold(tensor: Tensor) -> bool:
    """Whether the file can hold a tensor as it is: plain, dense, of a type that the format knows.

    A subclass such as a DTensor or a quantized weight is refused: it consists of more than its elements.
    """
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return is_plain and tensor.layout == torch.strided and tensor.dtype in DTYPES and not tensor.is_meta


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the file that `write_tensors` writes."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def free_bytes(directory: Path) -> int:
    """Free bytes on the disk that holds a directory, or will hold it."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def in_words(num_bytes: int) -> str:
    """3221225472 -> "3.00 GiB"."""
    return f"{num_bytes / 2**30:.2f} GiB"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], is_given_up: Callable[[], bool] = lambda: False) -> None:
    """Write them under a temporary name, then rename the file.

    Args:
        is_given_up: asked after each tensor: they may have changed since then.
    Raises:
        OSError: it cannot be written, or was given up; whatever is raised, nothing is left behind.
    Sync: waits for the device, tensor by tensor.
    """
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(_header(tensors))
        for tensor in tensors.values():
            flat = tensor.detach().to("cpu").contiguous().view(-1)
            file.write(flat.view(torch.uint8).numpy().data)
            file.flush()
            if is_given_up():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED), str(path))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    described, start = {}, 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        described[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)  # the elements begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text
