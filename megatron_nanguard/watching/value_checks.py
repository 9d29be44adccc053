"""Check whether tensors stay within a limit, and describe what is beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from megatron_nanguard.records.trace import TensorFacts, pattern_of
from megatron_nanguard.tensor_names import dtype_name


@torch.no_grad()
def is_beyond(tensors: Iterable[Tensor], above: float | None) -> bool:
    """Whether some element is NaN, Inf, or larger in magnitude than `above`.

    Sync: one host read for all of them; none when there is nothing to look at.
    """
    flags = [_beyond(values, above) for values in map(_reals, tensors) if values is not None]
    if not flags:
        return False
    home = flags[0].device
    return bool(torch.stack([flag.to(home) for flag in flags]).any())


@torch.no_grad()
def facts_of(name: str, tensor: Tensor, above: float | None) -> TensorFacts | None:
    """Describe what is beyond the limit in one tensor; None if nothing is.

    Sync: several host reads; only for tensors that are bad.
    """
    values = _reals(tensor)
    if values is None or not is_beyond([tensor], above):
        return None
    nan_count, inf_count = int(values.isnan().sum()), int(values.isinf().sum())
    magnitude = values.abs()
    finite = magnitude[values.isfinite()]
    found = (~(magnitude <= _limit(values.dtype, above))).nonzero()[:8]
    return TensorFacts(
        name=name,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        pattern=pattern_of(nan_count, inf_count),
        nan_count=nan_count,
        inf_count=inf_count,
        absmax=float(finite.max()) if finite.numel() else None,
        positions=tuple(tuple(position) for position in found.tolist()),
    )


def _reals(tensor: Tensor) -> Tensor | None:
    """The tensor as real floating-point numbers; None for other dtypes, fp8 and sparse, which `aminmax` cannot take."""
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.itemsize == 1:
        return None
    return tensor.detach()


def _beyond(values: Tensor, above: float | None) -> Tensor:
    """bool []: whether an element is beyond the limit. Comparisons with NaN are false, so it counts as beyond."""
    low, high = torch.aminmax(values)
    limit = _limit(values.dtype, above)
    return ~((low >= -limit) & (high <= limit))


def _limit(dtype: torch.dtype, above: float | None) -> float:
    """Largest magnitude that is not beyond the limit; at most what the dtype can hold."""
    return min(torch.finfo(dtype).max, math.inf if above is None else above)
