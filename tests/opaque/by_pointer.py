"""The kernels of `kernels.c` in numpy, on raw memory: for a machine without a compiler. Same names, same arguments."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.opaque.kernels import ARBITRARY, CAUSAL, Attention, Float8, Raw

Floats = NDArray[np.float32]
_STORED: dict[Any, Any] = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16}
_OTHERS: dict[Any, Any] = {torch.int32: np.int32, torch.int64: np.int64, torch.bool: np.uint8, torch.uint8: np.uint8}
_MANTISSA = {"e4m3": (3, 7, 448.0), "e5m2": (2, 15, 57344.0)}
_erf = np.vectorize(math.erf, otypes=[np.float32])


def memory(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor as it is stored, past the dispatcher."""
    dtype = np.dtype((_STORED | _OTHERS)[tensor.dtype])
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), dtype)
    whole = np.frombuffer((ctypes.c_byte * (span * dtype.itemsize)).from_address(tensor.data_ptr()), dtype)
    return np.lib.stride_tricks.as_strided(
        whole, tuple(tensor.shape), tuple(stride * dtype.itemsize for stride in tensor.stride())
    )


def load(x: Tensor | Float8) -> Floats:
    """Values as float32."""
    if isinstance(x, Float8):
        return _from_float8(memory(x.data), x.format)
    stored = memory(x)
    if x.dtype == torch.bfloat16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def store(x: Tensor | Float8 | None, values: Floats, accumulate: bool = False) -> None:
    """Write values in the format of the memory."""
    if x is None:
        return
    target = memory(x.data if isinstance(x, Float8) else x)
    values = np.asarray(values, np.float32).reshape(target.shape)
    if accumulate:
        values = load(x) + values
    target[...] = _to_float8(values, x.format) if isinstance(x, Float8) else _encoded(values, x.dtype)


def _encoded(values: Floats, dtype: torch.dtype) -> NDArray[Any]:
    """As it is stored; half formats round to even."""
    if dtype == torch.bfloat16:
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = np.where(np.isnan(values), bits >> 16 | 64, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        return rounded.astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(_STORED[dtype])


def _from_float8(codes: NDArray[np.uint8], name: str) -> Floats:
    mantissa, bias, _ = _MANTISSA[name]
    size = codes.astype(np.int32) & 0x7F
    exponent, fraction = size >> mantissa, (size & ((1 << mantissa) - 1)) / (1 << mantissa)
    values = np.where(exponent > 0, np.ldexp(1 + fraction, exponent - bias), np.ldexp(fraction, 1 - bias))
    values = np.where(size == 0x7F, np.nan, values)
    return np.where(codes & 0x80, -values, values).astype(np.float32)


def _to_float8(values: Floats, name: str) -> NDArray[np.uint8]:
    mantissa, bias, largest = _MANTISSA[name]
    size = np.minimum(np.abs(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)), largest)
    exponent = np.maximum(np.frexp(size)[1] - 1, 1 - bias)
    steps = np.rint(np.ldexp(size, mantissa - exponent)).astype(np.int32)
    code = np.where(size == 0, 0, steps + ((exponent + bias - 1) << mantissa)) | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), 0x7F, code).astype(np.uint8)


def gemm(
    left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor, left_t: bool, right_t: bool, accumulate: bool
) -> None:
    a, b = load(left), load(right)
    product = (a.T if left_t else a) @ (b.T if right_t else b)
    store(out, product if bias is None else product + load(bias), accumulate)


def sum_rows(x: Tensor, out: Tensor, accumulate: bool) -> None:
    store(out, load(x).sum(0), accumulate)


def norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, mean: Tensor, rsigma: Tensor, eps: float, rms: bool
) -> None:
    a = load(x)
    mu = np.zeros(len(a), np.float32) if rms else a.mean(-1, dtype=np.float64)
    rs = 1 / np.sqrt(np.square(a - mu[:, None], dtype=np.float64).mean(-1) + eps)
    normed = (a - mu[:, None]) * rs[:, None] * load(weight)
    store(out, normed if bias is None else normed + load(bias))
    store(mean, mu)
    store(rsigma, rs)


def norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    dx: Tensor,
    dw: Tensor,
    db: Tensor | None,
    rms: bool,
) -> None:
    g, rs = load(grad), load(rsigma)[:, None]
    normed = (load(x) - load(mean)[:, None]) * rs
    store(dw, (g * normed).sum(0))
    store(db, g.sum(0))
    scaled = g * load(weight)
    total = 0 if rms else scaled.mean(-1, keepdims=True)
    store(dx, rs * (scaled - total - normed * (scaled * normed).mean(-1, keepdims=True)))


def gelu_forward(x: Tensor, out: Tensor) -> None:
    a = load(x)
    store(out, 0.5 * a * (1 + _erf(a * math.sqrt(0.5))))


def gelu_backward(grad: Tensor, x: Tensor, dx: Tensor) -> None:
    a = load(x)
    density = np.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
    store(dx, load(grad) * (0.5 * (1 + _erf(a * math.sqrt(0.5))) + a * density))


def _kept(how: Attention, shape: tuple[int, ...]) -> Floats:
    """0, or the factor of what dropout leaves: the hash of `kernels.c`."""
    if how.dropout <= 0:
        return np.ones(shape, np.float32)
    seed, offset = (np.uint64(number) for number in memory(how.rng_state))
    with np.errstate(over="ignore"):
        at = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape) + np.uint64(1) + offset
        number = seed + np.uint64(0x9E3779B97F4A7C15) * at
        number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    uniform = ((number ^ number >> np.uint64(31)) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    return np.where(uniform < how.dropout, 0, 1 / (1 - how.dropout)).astype(np.float32)


def _scores(q: Floats, k: Floats, how: Attention) -> Floats:
    """[b, h, sq, sk], -inf where masked."""
    scores = np.einsum("ibhd,jbhd->bhij", q, k) * how.scale
    if how.mask_type == CAUSAL:
        hidden = memory(how.key_positions)[None, :] > memory(how.query_positions)[:, None]
        scores[..., hidden] = -np.inf
    elif how.mask_type == ARBITRARY:
        assert how.mask is not None
        hidden = np.broadcast_to(memory(how.mask)[:, None].astype(bool), scores.shape)
        scores[hidden] = -np.inf
    return scores


def _repeated(x: Floats, heads: int) -> Floats:
    return np.repeat(x, heads // x.shape[2], axis=2)


def attention_forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: Attention) -> None:
    heads = q.shape[2]
    scores = _scores(load(q), _repeated(load(k), heads), how)
    largest = scores.max(-1, keepdims=True)
    largest = np.where(largest == -np.inf, 0, largest)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        store(lse, np.log(total[..., 0]) + largest[..., 0])
    dropped = weights / np.where(total == 0, 1, total) * _kept(how, weights.shape)
    store(out, np.einsum("bhij,jbhd->ibhd", dropped, _repeated(load(v), heads)))


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    how: Attention,
) -> None:
    heads, groups = q.shape[2], k.shape[2]
    queries, keys, g = load(q), _repeated(load(k), heads), load(grad)
    log_sum = load(lse).reshape(q.shape[1], heads, q.shape[0])[..., None]
    weights = np.exp(_scores(queries, keys, how) - np.where(log_sum == -np.inf, 0, log_sum))
    kept = _kept(how, weights.shape)
    delta = np.einsum("ibhd,ibhd->bhi", g, load(out))[..., None]
    inner = weights * (kept * np.einsum("ibhd,jbhd->bhij", g, _repeated(load(v), heads)) - delta) * how.scale
    store(dq, np.einsum("bhij,jbhd->ibhd", inner, keys))
    of_keys = np.einsum("bhij,ibhd->jbhd", inner, queries)
    of_values = np.einsum("bhij,ibhd->jbhd", weights * kept, g)
    for tensor, gradient in ((dk, of_keys), (dv, of_values)):
        store(tensor, gradient.reshape(*gradient.shape[:2], groups, heads // groups, -1).sum(3))


def rope(x: Tensor, angles: Tensor, out: Tensor, sign: int) -> None:
    a, theta = load(x), load(angles)
    turned, passed = a[..., : theta.shape[-1]], a[..., theta.shape[-1] :]
    half = theta.shape[-1] // 2
    if sign > 0:
        crossed = np.concatenate((-turned[..., half:], turned[..., :half]), -1) * np.sin(theta)
    else:
        weighted = turned * np.sin(theta)
        crossed = np.concatenate((weighted[..., half:], -weighted[..., :half]), -1)
    store(out, np.concatenate((turned * np.cos(theta) + crossed, passed), -1))


def gather_rows(x: Tensor, rows: Raw, factors: Tensor | None, out: Tensor) -> None:
    taken = load(x)[memory(rows.tensor)[: out.shape[0]]]
    store(out, taken if factors is None else taken * load(factors).reshape(-1, 1))


def scatter_rows(x: Tensor, rows: Raw, factors: Tensor | None, out: Tensor) -> None:
    values = load(x) if factors is None else load(x) * load(factors).reshape(-1, 1)
    total = np.zeros(tuple(out.shape), np.float32)
    np.add.at(total, memory(rows.tensor)[: len(values)], values)
    store(out, total)


def sort_by_expert(routing_map: Raw, tokens: int, experts: int, rows: Raw, pairs: Raw) -> int:
    chosen, of_tokens = np.nonzero(memory(routing_map.tensor).T)
    memory(rows.tensor)[: len(of_tokens)] = of_tokens
    memory(pairs.tensor)[: len(of_tokens)] = of_tokens * experts + chosen
    return len(of_tokens)


def quantize(x: Tensor, data: Float8, scale: Raw, amax: Raw, scale_inv: Raw) -> None:
    values, factor = load(x), memory(scale.tensor).flat[0]
    largest = np.fmax.reduce(np.abs(values), axis=None) if values.size else 0
    amax_memory = memory(amax.tensor)
    amax_memory[...] = np.fmax(amax_memory, largest)
    memory(scale_inv.tensor)[...] = 1 / factor
    store(data, values * factor)


def dequantize(data: Float8, scale_inv: Raw, out: Tensor) -> None:
    store(out, load(data) * memory(scale_inv.tensor).flat[0])


def spoil(x: Tensor, first: int, elements: int, value: float, is_given: bool) -> None:
    itemsize = x.element_size()
    flat = np.frombuffer(
        (ctypes.c_byte * (elements * itemsize)).from_address(x.data_ptr() + first * itemsize), _STORED[x.dtype]
    )
    if is_given:
        flat[...] = _encoded(np.full(elements, value, np.float32), x.dtype)
