"""Plain PyTorch references for kernels that torch cannot run in higher precision.

This file imports nothing of its package, since a bundle holds a copy of it. A reference takes the arguments of the
kernel by name and ignores those that do not change the result. Gradients come from autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

MAX_SCORES = 1 << 27
"""Limit for the host memory: a few copies of the scores in double precision exist at a time."""


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
    **_: object,
) -> Tensor:
    """Layer normalisation over the last dims, by its definition.

    Apex calls the arguments by one set of names, its fast layer norm by the other.
    """
    values = x if input is None else input
    scale, shift = gamma if weight is None else weight, beta if bias is None else bias
    assert values is not None
    dims = _last_dims(normalized_shape)
    centred = values - values.mean(dims, keepdim=True)
    variance = centred.square().mean(dims, keepdim=True)
    result = centred * torch.rsqrt(variance + (eps if epsilon is None else epsilon))
    result = result if scale is None else result * scale
    return result if shift is None else result + shift


def rmsnorm(
    *,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    normalized_shape: Sequence[int] | None = None,
    eps: float = 1e-5,
    x: Tensor | None = None,
    **_: object,
) -> Tensor:
    """Root mean square normalisation over the last dims, by its definition.

    Apex and Megatron's batch-invariant kernel name the input differently.
    """
    values = x if input is None else input
    assert values is not None
    square = values.square().mean(_last_dims(normalized_shape), keepdim=True)
    result = values * torch.rsqrt(square + eps)
    return result if weight is None else result * weight


def gelu(*, input: Tensor, bias: Tensor | None = None, **_: object) -> Tensor:
    """Gelu after a bias, in the tanh approximation that the fused kernels compute.

    0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    """
    x = input if bias is None else input + bias
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swiglu(*, input: Tensor, bias: Tensor | None = None, weights: Tensor | None = None, **_: object) -> Tensor:
    """x1 sigmoid(x1) x2: the first half of the last dim gates the second; a bias before, token weights after."""
    gate, value = torch.chunk(input if bias is None else input + bias, 2, dim=-1)
    result = gate * torch.sigmoid(gate) * value
    return result if weights is None else result * weights


def softmax(*, inputs: Tensor, scale: float = 1.0, mask: Tensor | None = None, **_: object) -> Tensor:
    """Scaled softmax over the last dim; the mask is true where a score is dropped, as in Megatron."""
    scores = inputs * scale
    # Megatron's mask functions and fused kernels put this value in place of a masked score.
    return _softmax(scores if mask is None else scores.masked_fill(mask.bool(), -10000.0))


def causal_softmax(*, inputs: Tensor, scale: float = 1.0, **_: object) -> Tensor:
    """Scaled softmax over the last dim, in which a row sees no later column."""
    return _softmax(_causal(inputs * scale, 1))


def dot_product_attention(
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    query: Tensor | None = None,
    key: Tensor | None = None,
    value: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    window_size: Sequence[int] = (-1, -1),
    **_: object,
) -> Tensor:
    """Attend; flash-attn's q, k, v are [batch, seq, head, dim], torch's query, key, value [batch, head, seq, dim].

    Raises:
        NotImplementedError: dropout, whose random numbers only the kernel knows, a sliding window, or too many scores.
    """
    if dropout_p or any(side >= 0 for side in window_size):
        raise NotImplementedError("no reference for attention with dropout or a sliding window")
    if query is not None:
        assert key is not None and value is not None
        return _attend(query, key, value, is_causal, scale, attn_bias)
    assert q is not None and k is not None and v is not None
    result = _attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal, softmax_scale, attn_bias)
    return result.transpose(1, 2)


def cross_entropy(
    *,
    vocab_parallel_logits: Tensor | None = None,
    target: Tensor | None = None,
    label_smoothing: float = 0.0,
    logits: Tensor | None = None,
    labels: Tensor | None = None,
    smoothing: float = 0.0,
    **_: object,
) -> Tensor:
    """log(sum(exp(logits))) minus the logit of the target, per token; Megatron's names, then Apex's.

    Raises:
        NotImplementedError: labels are smoothed, or a target lies outside of this rank's part of the vocabulary.
    """
    scores, wanted = logits if target is None else vocab_parallel_logits, labels if target is None else target
    assert scores is not None and wanted is not None
    if label_smoothing or smoothing:
        raise NotImplementedError("no reference for smoothed labels")
    if int(wanted.max()) >= scores.shape[-1]:
        raise NotImplementedError("no reference for a vocabulary that is split over ranks")
    shifted = scores - scores.amax(-1, keepdim=True).detach()
    return shifted.exp().sum(-1).log() - shifted.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


def _last_dims(normalized_shape: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(range(-(1 if normalized_shape is None else len(normalized_shape)), 0))


def _softmax(scores: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True)


def _causal(scores: Tensor, first_hidden: int) -> Tensor:
    """Drop the scores above a diagonal: those of the columns that a row must not see."""
    later = torch.ones(*scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(first_hidden)
    return scores.masked_fill(later, float("-inf"))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, bias: Tensor | None
) -> Tensor:
    """Attend over [batch, head, seq, dim]; fewer heads of key and value serve several of the query."""
    num_scores = math.prod(query.shape[:-1]) * key.shape[-2]
    if num_scores > MAX_SCORES:
        raise NotImplementedError(f"no reference for attention with {num_scores} scores, the limit is {MAX_SCORES}")
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    if causal:
        scores = _causal(scores, 1 + scores.shape[-1] - scores.shape[-2])
    return _softmax(scores) @ value


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "FastLayerNormFN": layernorm,
    "FusedLayerNormAffineFunction": layernorm,
    "FusedLayerNormFunction": layernorm,
    "FusedRMSNormAffineFunction": rmsnorm,
    "FusedRMSNormFunction": rmsnorm,
    "BatchInvariantRMSNormFn": rmsnorm,
    "GeLUFunction": gelu,
    "BiasSwiGLUFunction": swiglu,
    "SwiGLUFunction": swiglu,
    "WeightedSwiGLUFunction": swiglu,
    "ScaledSoftmax": softmax,
    "ScaledMaskedSoftmax": softmax,
    "ScaledUpperTriangMaskedSoftmax": causal_softmax,
    "FlashAttnFunc": dot_product_attention,
    "aten._scaled_dot_product_cudnn_attention.default": dot_product_attention,
    "aten._scaled_dot_product_efficient_attention.default": dot_product_attention,
    "aten._scaled_dot_product_flash_attention.default": dot_product_attention,
    "_VocabParallelCrossEntropy": cross_entropy,
    "SoftmaxCrossEntropyLoss": cross_entropy,
}
"""Reference of a kernel. Autograd Functions by class name, of Megatron, Apex and flash-attn; operators by full name."""


def reference_for(kernel: str) -> Callable[[dict[str, object], dict[str, object]], Tensor] | None:
    """The reference of a kernel, called with positional arguments by name and keyword arguments; None without one."""
    reference = REFERENCES.get(kernel)
    return None if reference is None else lambda args, kwargs: reference(**args, **kwargs)
