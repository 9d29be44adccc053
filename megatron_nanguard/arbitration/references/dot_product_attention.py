"""Attention by its definition: scores, mask, softmax, sum of values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_SCORES = 1 << 27
"""Limit for the host memory: a few copies of the scores in double precision exist at a time."""


def reference(
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
        return attend(query, key, value, is_causal, scale, attn_bias)
    assert q is not None and k is not None and v is not None
    result = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal, softmax_scale, attn_bias)
    return result.transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, bias: Tensor | None) -> Tensor:
    """Attend over [batch, head, seq, dim]; fewer heads of key and value serve several of the query."""
    num_scores = math.prod(query.shape[:-1]) * key.shape[-2]
    if num_scores > MAX_SCORES:
        raise NotImplementedError(f"no reference for attention with {num_scores} scores, the limit is {MAX_SCORES}")
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    if causal:
        rows, columns = scores.shape[-2:]
        later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(1 + columns - rows)
        scores = scores.masked_fill(later, float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ value
