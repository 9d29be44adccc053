"""The kernels, called with tensors: nothing but their pointers, sizes and strides is asked for.

They are those of `kernels.c`, compiled by the system's compiler into the temporary folder; without a compiler, or with
OPAQUE_KERNELS=numpy, those of `by_pointer.py`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O2", "-ftree-vectorize", "-shared", "-fPIC")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FLOAT8 = {"e4m3": 3, "e5m2": 4}
NO_MASK, CAUSAL, ARBITRARY = 0, 1, 2


class Float8(NamedTuple):
    """Bytes of a float8 format."""

    data: Tensor
    format: str


class Raw(NamedTuple):
    """A contiguous tensor of which the kernel gets the address alone."""

    tensor: Tensor


@dataclass(frozen=True)
class Attention:
    """What an attention kernel is told beside its arrays.

    Attributes:
        scale: of the scores.
        dropout: share of the weights that is dropped.
        mask_type: NO_MASK, CAUSAL by position, or ARBITRARY.
        query_positions: int64 [sq]; where this rank's queries are in the sequence.
        key_positions: int64 [sk].
        rng_state: int64 [2], seed and offset.
        mask: bool [b, sq, sk], True where masked; for ARBITRARY.
    """

    scale: float
    dropout: float
    mask_type: int
    query_positions: Tensor
    key_positions: Tensor
    rng_state: Tensor
    mask: Tensor | None = None


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("size", ctypes.c_long * 4),
        ("stride", ctypes.c_long * 4),
    )


class _Attention(ctypes.Structure):
    _fields_ = (
        ("scale", ctypes.c_float),
        ("dropout", ctypes.c_float),
        ("mask_type", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("query_positions", "key_positions", "rng_state", "mask")),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they are numpy's."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.environ.get("OPAQUE_KERNELS") == "numpy":
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir(), f"nanguard-opaque-{os.getuid()}-{digest}.so")
    if not built.exists():
        # Several ranks may be here at once: each writes a file of its own, the last one stays.
        own = built.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *FLAGS, "-o", str(own), str(SOURCE), "-lm"], check=True)
        own.replace(built)
    loaded = ctypes.CDLL(str(built))
    loaded.sort_by_expert.restype = ctypes.c_long
    return loaded


def _call(name: str, *args: Any) -> Any:
    compiled = library()
    if compiled is None:
        from tests.opaque import by_pointer

        return getattr(by_pointer, name)(*args)
    return getattr(compiled, name)(*map(_passed, args))


def _passed(value: Any) -> Any:
    if isinstance(value, Raw):
        return ctypes.c_void_p(value.tensor.data_ptr())
    if isinstance(value, Float8):
        return _array(value.data, FLOAT8[value.format])
    if isinstance(value, Tensor):
        return _array(value, DTYPES[value.dtype])
    if isinstance(value, Attention):
        tensors = (value.query_positions, value.key_positions, value.rng_state, value.mask)
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        return _Attention(value.scale, value.dropout, value.mask_type, *addresses)
    if value is None:
        return _Array()
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_long(value)


def _array(tensor: Tensor, dtype: int) -> _Array:
    missing = 4 - tensor.dim()
    size, stride = (1,) * missing + tuple(tensor.shape), (0,) * missing + tensor.stride()
    return _Array(tensor.data_ptr(), dtype, (ctypes.c_long * 4)(*size), (ctypes.c_long * 4)(*stride))


def gemm(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    left_t: bool = False,
    right_t: bool = False,
    accumulate: bool = False,
) -> None:
    """out = left right + bias, each operand transposed where said; out += with `accumulate`."""
    _call("gemm", left, right, bias, out, left_t, right_t, accumulate)


def sum_rows(x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    """out[n] = sum of the rows of x[m, n]."""
    _call("sum_rows", x, out, accumulate)


def norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, mean: Tensor, rsigma: Tensor, eps: float, rms: bool
) -> None:
    """LayerNorm or RMSNorm of the rows of x."""
    _call("norm_forward", x, weight, bias, out, mean, rsigma, float(eps), rms)


def norm_backward(
    grad: Tensor,
    x: Tensor,
    statistics: tuple[Tensor, Tensor],
    weight: Tensor,
    dx: Tensor,
    dw: Tensor,
    db: Tensor | None,
    rms: bool,
) -> None:
    """Gradients of a norm; `statistics` are mean and rsigma."""
    _call("norm_backward", grad, x, *statistics, weight, dx, dw, db, rms)


def gelu_forward(x: Tensor, out: Tensor) -> None:
    """GELU with erf."""
    _call("gelu_forward", x, out)


def gelu_backward(grad: Tensor, x: Tensor, dx: Tensor) -> None:
    """Gradient of GELU at x."""
    _call("gelu_backward", grad, x, dx)


def attention_forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: Attention) -> None:
    """Softmax attention: q, out [sq, b, h, d]; k, v [sk, b, groups, d]; lse [1, b, h, sq]."""
    _call("attention_forward", q, k, v, out, lse, how)


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
    how: Attention,
) -> None:
    """Gradients of q, k and v."""
    _call("attention_backward", grad, q, k, v, out, lse, *gradients, how)


def rope(x: Tensor, angles: Tensor, out: Tensor, *, back: bool = False) -> None:
    """Turn x [s, b, h, d] by angles [s, 1, 1, r]; `back` is the transpose."""
    _call("rope", x, angles, out, -1 if back else 1)


def gather_rows(x: Tensor, rows: Tensor, factors: Tensor | None, out: Tensor) -> None:
    """out[i] = x[rows[i]] factors[i]; rows are int32."""
    _call("gather_rows", x, Raw(rows), factors, out)


def scatter_rows(x: Tensor, rows: Tensor, factors: Tensor | None, out: Tensor) -> None:
    """out[rows[i]] = sum of x[i] factors[i]."""
    _call("scatter_rows", x, Raw(rows), factors, out)


def sort_by_expert(routing_map: Tensor, rows: Tensor, pairs: Tensor) -> int:
    """Rows of the tokens sorted by expert, and their places in the map, both int32; returns how many."""
    number: int = _call("sort_by_expert", Raw(routing_map), *routing_map.shape, Raw(rows), Raw(pairs))
    return number


def quantize(x: Tensor, data: Float8, scale: Tensor, amax: Tensor, scale_inv: Tensor) -> None:
    """data = x scale in float8; `amax` is raised to the largest |x|."""
    _call("quantize", x, data, Raw(scale), Raw(amax), Raw(scale_inv))


def dequantize(data: Float8, scale_inv: Tensor, out: Tensor) -> None:
    """out = data scale_inv."""
    _call("dequantize", data, Raw(scale_inv), out)


def spoil(x: Tensor, first: int, elements: int, value: float | None) -> None:
    """Overwrite elements in memory order: a kernel gone wrong. None: with what they are."""
    _call("spoil", x, first, elements, float(value or 0.0), value is not None)
