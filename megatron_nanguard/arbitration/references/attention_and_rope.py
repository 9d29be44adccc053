"""References of attention, of its softmax alone, and of rotary position embeddings."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

MAX_SCORES = 1 << 27
"""Limit for the host memory: a few copies of the scores in double precision exist at a time."""


def softmax(*, inputs: Tensor, scale: float = 1.0, mask: Tensor | None = None, **_: object) -> Tensor:
    """Scaled softmax over the last dim; the mask is true where a score is dropped, as in Megatron."""
    scores = inputs * scale
    # Megatron's mask functions and fused kernels put this value in place of a masked score.
    return _softmax(scores if mask is None else scores.masked_fill(mask.bool(), -10000.0))


def causal_softmax(*, inputs: Tensor, scale: float = 1.0, **_: object) -> Tensor:
    """Scaled softmax over the last dim, in which a row sees no later column."""
    return _softmax(_causal(inputs * scale, 1))


def aligned_causal_softmax(*, inputs: Tensor, scale: float = 1.0, **_: object) -> Tensor:
    """Scaled softmax over the last dim, in which the last row sees all columns, and each row before it one less."""
    return _softmax(_causal(inputs * scale, 1 + inputs.shape[-1] - inputs.shape[-2]))


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
    qkv: Tensor | None = None,
    kv: Tensor | None = None,
    **more: object,
) -> Tensor:
    """Attend; flash-attn's q, k, v are [batch, seq, head, dim], torch's query, key, value [batch, head, seq, dim].

    Raises:
        NotImplementedError: dropout, whose random numbers only the kernel knows, a sliding window, or too many scores.
    """
    _refuse_what_only_the_kernel_knows(more)
    if query is not None:
        assert key is not None and value is not None
        return _attend(query, key, value, is_causal, scale, attn_bias)
    q, k, v = _unpacked(q, k, v, qkv, kv, dim=2)
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    result = _attend(q, k, v, causal, softmax_scale, attn_bias, softcap=_softcap(more))
    return result.transpose(1, 2)


def varlen_attention(
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qkv: Tensor | None = None,
    kv: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    **more: object,
) -> Tensor:
    """Attend in each sequence of a packed batch: flash-attn's q, k, v are [token, head, dim].

    Raises:
        NotImplementedError: as `dot_product_attention`.
    """
    _refuse_what_only_the_kernel_knows(more)
    q, k, v = _unpacked(q, k, v, qkv, kv, dim=1)
    ends_q = cu_seqlens if cu_seqlens_q is None else cu_seqlens_q
    ends_k = ends_q if cu_seqlens_k is None else cu_seqlens_k
    assert ends_q is not None and ends_k is not None
    return _attend_packed(q, k, v, ends_q, ends_k, causal, softmax_scale, _softcap(more))


def fused_attention(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qkv_layout: str,
    attn_mask_type: str = "no_mask",
    attn_scale: float | None = None,
    attn_bias: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_kv: Tensor | None = None,
    softmax_type: str = "vanilla",
    **more: object,
) -> Tensor:
    """Attend as Transformer Engine does: q, k, v are laid out as `qkv_layout` says, such as "sbhd_sbhd_sbhd".

    Raises:
        NotImplementedError: as `dot_product_attention`, or a mask or a softmax that is not known here.
    """
    # It says "no later column" by a window too, beside its mask.
    _refuse_what_only_the_kernel_knows(more, no_window=((-1, -1), (-1, 0)))
    is_padded, is_causal = "padding" in attn_mask_type, "causal" in attn_mask_type
    if attn_mask_type == "arbitrary" or softmax_type not in ("", "vanilla"):
        raise NotImplementedError(f"no reference for attention with {attn_mask_type}, {softmax_type}")
    form = re.sub("[0-9]", "", qkv_layout.split("_")[0])
    if form == "thd":
        assert cu_seqlens_q is not None and cu_seqlens_kv is not None
        is_aligned = "bottom_right" in attn_mask_type
        return _attend_packed(q, k, v, cu_seqlens_q, cu_seqlens_kv, is_causal, attn_scale, 0.0, is_aligned=is_aligned)
    to_heads = (1, 2, 0, 3) if form == "sbhd" else (0, 2, 1, 3)
    q, k, v = (one.permute(to_heads) for one in (q, k, v))
    if is_padded:
        assert cu_seqlens_kv is not None
        is_past_end = torch.arange(k.shape[2]) >= cu_seqlens_kv.diff().unsqueeze(1)
        padding = torch.zeros(is_past_end.shape, dtype=q.dtype).masked_fill(is_past_end, float("-inf"))
        attn_bias = padding[:, None, None] if attn_bias is None else attn_bias + padding[:, None, None]
    is_aligned = "bottom_right" in attn_mask_type
    result = _attend(q, k, v, is_causal, attn_scale, attn_bias, is_aligned=is_aligned)
    return result.permute((2, 0, 1, 3) if form == "sbhd" else (0, 2, 1, 3))


def rotary_embedding(
    *,
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    start_positions: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    **_: object,
) -> Tensor:
    """Turn pairs of elements by the angles of their position; what is beyond the angles passes as it is.

    Raises:
        NotImplementedError: sequences that are split over ranks, or begin in the middle.
    """
    if cp_size > 1 or start_positions is not None:
        raise NotImplementedError("no reference for positions of a part of a sequence")
    if tensor_format == "thd":
        assert cu_seqlens is not None
        angles = torch.cat([freqs[: end - start] for start, end in _ranges(cu_seqlens)]).squeeze(1)
    else:
        angles = freqs[: t.shape[1 if tensor_format == "bshd" else 0]]
        angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
    turned, rest = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
    if interleaved:
        other = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = turned.chunk(2, dim=-1)
        other = torch.cat((-second, first), dim=-1)
    return torch.cat((turned * angles.cos() + other * angles.sin(), rest), dim=-1)


def _refuse_what_only_the_kernel_knows(more: dict[str, object], *, no_window: tuple[object, ...] = ((-1, -1),)) -> None:
    window = more.get("window_size")
    is_window = isinstance(window, list | tuple) and tuple(window) not in no_window
    if more.get("dropout_p") or is_window:
        raise NotImplementedError("no reference for attention with dropout or a sliding window")
    if more.get("alibi_slopes") is not None or more.get("block_table") is not None:
        raise NotImplementedError("no reference for attention with slopes or pages")


def _softcap(more: dict[str, object]) -> float:
    found = more.get("softcap") or 0.0
    assert isinstance(found, float | int)
    return float(found)


def _unpacked(
    q: Tensor | None, k: Tensor | None, v: Tensor | None, qkv: Tensor | None, kv: Tensor | None, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    if qkv is not None:
        q, k, v = qkv.unbind(dim)
    elif kv is not None:
        k, v = kv.unbind(dim)
    assert q is not None and k is not None and v is not None
    return q, k, v


def _attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    causal: bool,
    scale: float | None,
    softcap: float,
    *,
    is_aligned: bool = True,
) -> Tensor:
    parts = []
    for (start_q, end_q), (start_k, end_k) in zip(_ranges(ends_q), _ranges(ends_k), strict=True):
        sequence = (q[start_q:end_q], k[start_k:end_k], v[start_k:end_k])
        query, key, value = (one.transpose(0, 1).unsqueeze(0) for one in sequence)
        part = _attend(query, key, value, causal, scale, None, softcap=softcap, is_aligned=is_aligned)
        parts.append(part.squeeze(0).transpose(0, 1))
    return torch.cat(parts)


def _ranges(ends: Tensor) -> Iterator[tuple[int, int]]:
    """Yield start and end of each sequence: the ends begin with 0."""
    yield from itertools.pairwise(ends.tolist())


def _softmax(scores: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True)


def _causal(scores: Tensor, first_hidden: int) -> Tensor:
    """Drop the scores above a diagonal: those of the columns that a row must not see."""
    later = torch.ones(*scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(first_hidden)
    return scores.masked_fill(later, float("-inf"))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    scale: float | None,
    bias: Tensor | None,
    *,
    softcap: float = 0.0,
    is_aligned: bool = True,
) -> Tensor:
    """Attend over [batch, head, seq, dim]; fewer heads of key and value serve several of the query.

    Args:
        is_aligned: the last query sees all keys; else the first query sees the first key.
    """
    num_scores = math.prod(query.shape[:-1]) * key.shape[-2]
    if num_scores > MAX_SCORES:
        raise NotImplementedError(f"no reference for attention with {num_scores} scores, the limit is {MAX_SCORES}")
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias
    if causal:
        scores = _causal(scores, 1 + (scores.shape[-1] - scores.shape[-2] if is_aligned else 0))
    return _softmax(scores) @ value


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "ScaledSoftmax": softmax,
    "ScaledMaskedSoftmax": softmax,
    "ScaledUpperTriangMaskedSoftmax": causal_softmax,
    "ScaledAlignedCausalMaskedSoftmax": aligned_causal_softmax,
    "te_softmax.scaled_softmax_fwd.default": softmax,
    "te_softmax.scaled_masked_softmax_fwd.default": softmax,
    "te_softmax.scaled_upper_triang_masked_softmax_fwd.default": causal_softmax,
    "te_softmax.scaled_aligned_causal_masked_softmax_fwd.default": aligned_causal_softmax,
    "FlashAttnFunc": dot_product_attention,
    "FlashAttnQKVPackedFunc": dot_product_attention,
    "FlashAttnKVPackedFunc": dot_product_attention,
    "FlashAttnVarlenFunc": varlen_attention,
    "FlashAttnVarlenQKVPackedFunc": varlen_attention,
    "FlashAttnVarlenKVPackedFunc": varlen_attention,
    "FusedAttnFunc": fused_attention,
    "aten._scaled_dot_product_cudnn_attention.default": dot_product_attention,
    "aten._scaled_dot_product_efficient_attention.default": dot_product_attention,
    "aten._scaled_dot_product_flash_attention.default": dot_product_attention,
    "FusedRoPEFunc": rotary_embedding,
}
