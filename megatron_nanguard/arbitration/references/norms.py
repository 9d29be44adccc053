"""References of layer and root mean square normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor


def layernorm(
    *,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    normalized_shape: Sequence[int] | None = None,
    eps: float = 1e-5,
    x: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float | None = None,
    inp: Tensor | None = None,
    ln_weight: Tensor | None = None,
    ln_bias: Tensor | None = None,
    zero_centered_gamma: bool = False,
    **_: object,
) -> Tensor:
    """Layer normalisation over the last dims, by its definition.

    Apex calls the arguments by one set of names, its fast layer norm by the second, Transformer Engine by the third.
    """
    values = _first(input, x, inp)
    scale, shift = _first_or_none(weight, gamma, ln_weight), _first_or_none(bias, beta, ln_bias)
    dims = _last_dims(normalized_shape)
    centred = values - values.mean(dims, keepdim=True)
    variance = centred.square().mean(dims, keepdim=True)
    result = centred * torch.rsqrt(variance + (eps if epsilon is None else epsilon))
    result = result if scale is None else result * (1 + scale if zero_centered_gamma else scale)
    return result if shift is None else result + shift


def rmsnorm(
    *,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    normalized_shape: Sequence[int] | None = None,
    eps: float = 1e-5,
    x: Tensor | None = None,
    inp: Tensor | None = None,
    rmsnorm_weight: Tensor | None = None,
    zero_centered_gamma: bool = False,
    **_: object,
) -> Tensor:
    """Root mean square normalisation over the last dims, by its definition.

    Apex, Megatron's batch-invariant kernel and Transformer Engine name the arguments differently.
    """
    values, scale = _first(input, x, inp), _first_or_none(weight, rmsnorm_weight)
    square = values.square().mean(_last_dims(normalized_shape), keepdim=True)
    result = values * torch.rsqrt(square + eps)
    return result if scale is None else result * (1 + scale if zero_centered_gamma else scale)


def _first_or_none(*given: Tensor | None) -> Tensor | None:
    return next((one for one in given if one is not None), None)


def _first(*given: Tensor | None) -> Tensor:
    found = _first_or_none(*given)
    assert found is not None
    return found


def _last_dims(normalized_shape: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(range(-(1 if normalized_shape is None else len(normalized_shape)), 0))


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "FastLayerNormFN": layernorm,
    "FusedLayerNormAffineFunction": layernorm,
    "FusedLayerNormAffineMixedDtypesFunction": layernorm,
    "FusedLayerNormFunction": layernorm,
    "_LayerNorm": layernorm,
    "FusedRMSNormAffineFunction": rmsnorm,
    "FusedRMSNormAffineMixedDtypesFunction": rmsnorm,
    "FusedRMSNormFunction": rmsnorm,
    "BatchInvariantRMSNormFn": rmsnorm,
    "_RMSNorm": rmsnorm,
}
