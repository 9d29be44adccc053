"""References of Transformer Engine's, flash-attn's, Apex's and MindSpeed's layers against plain torch, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from megatron_nanguard.arbitration.references.attention_and_rope import (
    fused_attention,
    rotary_embedding,
    varlen_attention,
)
from megatron_nanguard.arbitration.references.experts import (
    grouped_linear,
    grouped_matmul,
    permute_by_index,
    permute_by_mask,
    sort_chunks,
    unpermute_by_index,
)
from megatron_nanguard.arbitration.references.layers import dense_gelu_dense, layernorm_linear, layernorm_mlp, mlp


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


X, GAMMA, BETA = normal(5, 2, 8), normal(8), normal(8)


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("in_a_tuple", [False, True])
def test_layernorm_linear(is_centred: bool, in_a_tuple: bool) -> None:
    """Old releases of Transformer Engine pass settings one by one, new ones in a tuple among others."""
    settings: dict[str, Any] = {"eps": 1e-3, "zero_centered_gamma": is_centred, "normalization": "LayerNorm"}
    if in_a_tuple:
        settings = {"non_tensor_args": [1e-3, None, True, None, torch.float32, is_centred, "LayerNorm", "qkv", 2]}
    weight, bias = normal(3, 8), normal(3)

    found = layernorm_linear(inp=X, ln_weight=GAMMA, ln_bias=BETA, weight=weight, bias=bias, **settings)

    normed = functional.layer_norm(X, (8,), GAMMA + 1 if is_centred else GAMMA, BETA, 1e-3)
    assert close(found, functional.linear(normed, weight, bias))


def test_rmsnorm_linear() -> None:
    weight = normal(3, 8)

    found = layernorm_linear(inp=X, ln_weight=GAMMA, weight=weight, bias=torch.empty(0), normalization="RMSNorm")

    assert close(found, functional.linear(functional.rms_norm(X, (8,), GAMMA, 1e-5), weight))


@pytest.mark.parametrize(
    ("activation", "width"),
    [("gelu", 6), ("relu", 6), ("srelu", 6), ("silu", 6), ("swiglu", 3), ("reglu", 3), ("geglu", 3)],
)
@pytest.mark.parametrize("in_a_tuple", [False, True])
def test_layernorm_mlp(activation: str, width: int, in_a_tuple: bool) -> None:
    first, second, bias = normal(6, 8), normal(8, width), normal(6)
    settings: dict[str, Any] = {"eps": 1e-5, "activation": activation, "normalization": "LayerNorm"}
    if in_a_tuple:
        settings = {"non_tensor_args": [1e-5, None, False, activation, {}, "LayerNorm"]}

    found = layernorm_mlp(
        inp=X, ln_weight=GAMMA, ln_bias=BETA, fc1_weight=first, fc1_bias=bias, fc2_weight=second, **settings
    )

    hidden = functional.linear(functional.layer_norm(X, (8,), GAMMA, BETA, 1e-5), first, bias)
    gate, value = hidden.chunk(2, -1)
    expected = {
        "gelu": lambda: functional.gelu(hidden, approximate="tanh"),
        "relu": lambda: hidden.relu(),
        "srelu": lambda: hidden.relu() ** 2,
        "silu": lambda: functional.silu(hidden),
        "swiglu": lambda: functional.silu(gate) * value,
        "reglu": lambda: gate.relu() * value,
        "geglu": lambda: functional.gelu(gate, approximate="tanh") * value,
    }[activation]()
    assert close(found, functional.linear(expected, second))


def test_an_activation_that_is_not_known_is_said() -> None:
    with pytest.raises(NotImplementedError, match="clamped_swiglu"):
        layernorm_mlp(
            inp=X, ln_weight=GAMMA, fc1_weight=normal(6, 8), fc2_weight=normal(8, 3), activation="clamped_swiglu"
        )


def test_layers_of_apex() -> None:
    first, second, bias = normal(6, 8), normal(3, 6), normal(6)

    dense = dense_gelu_dense(input=X, weight1=first, bias1=bias, weight2=second, bias2=normal(3))
    plain = mlp(
        bias=1, activation=1, **{"args.0": X, "args.1": first, "args.2": second, "args.3": bias, "args.4": normal(3)}
    )

    hidden = functional.linear(X, first, bias)
    assert close(dense, functional.linear(functional.gelu(hidden, approximate="tanh"), second, normal(3)))
    assert close(plain, functional.linear(hidden.relu(), second, normal(3)))


def test_grouped_linear() -> None:
    rows, layers = normal(7, 8), [nn.Linear(8, 3, dtype=torch.float64) for _ in range(3)]
    given = [layer.weight for layer in layers] + [layer.bias for layer in layers]
    named = {f"weights_and_biases.{index}": one for index, one in enumerate(given)}

    found = grouped_linear(inp=rows, m_splits=torch.tensor([2, 0, 4]), **named)

    assert close(found, torch.cat([layers[0](rows[:2]), layers[2](rows[2:6])]))


@pytest.mark.parametrize(
    "groups",
    [
        {"group_list": torch.tensor([2, 2, 6]), "group_list_type": 0},
        {"group_list": torch.tensor([2, 0, 4]), "group_list_type": 1},
    ],
)
def test_grouped_matmul_of_mindspeed(groups: dict[str, Any]) -> None:
    rows, matrices = normal(6, 8), normal(3, 8, 4)

    found = grouped_matmul(x=rows, weight=matrices, bias=None, **groups)

    assert close(found, torch.cat([rows[:2] @ matrices[0], rows[2:] @ matrices[2]]))


def test_grouped_matmul_with_transposed_matrices() -> None:
    rows, matrices = normal(6, 8), normal(2, 4, 8)

    found = grouped_matmul(a=rows, b=matrices, batch_sizes=torch.tensor([1, 5]), trans_b=True)

    assert close(found, torch.cat([rows[:1] @ matrices[0].T, rows[1:] @ matrices[1].T]))


def test_permute_and_back() -> None:
    tokens = torch.arange(3.0, dtype=torch.float64).unsqueeze(1)
    experts = torch.tensor([[1, 0], [0, 2], [2, 1]])

    permuted = permute_by_index(inp=tokens, indices=experts)
    mask = torch.zeros(3, 3, dtype=torch.bool).scatter(1, experts, True)

    assert permuted.flatten().tolist() == [0, 1, 0, 2, 1, 2]
    assert permute_by_mask(inp=tokens, routing_map=mask).flatten().tolist() == [0, 1, 0, 2, 1, 2]
    # Where each token's rows went, by its first and its second expert; one of them was dropped.
    row_id_map = torch.tensor([2, 1, 5, 0, 4, -1])
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 9.0]], dtype=torch.float64)
    assert unpermute_by_index(inp=permuted, row_id_map=row_id_map, probs=probs).flatten().tolist() == [0, 1, 2]


def test_sort_chunks() -> None:
    rows = torch.arange(5.0).unsqueeze(1)

    found = sort_chunks(inp=rows, split_sizes=torch.tensor([2, 1, 2]), sorted_idxs=torch.tensor([2, 0, 1]))

    assert found.flatten().tolist() == [3, 4, 0, 1, 2]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """torch's attention over [batch, seq, head, dim]."""
    heads = [one.transpose(1, 2) for one in (q, k, v)]
    return functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize(("mask", "diagonal"), [("no_mask", None), ("causal", 0), ("causal_bottom_right", 2)])
@pytest.mark.parametrize("layout", ["sbhd_sbhd_sbhd", "bshd_bs2hd", "sbh3d"])
def test_fused_attention(mask: str, diagonal: int | None, layout: str) -> None:
    q, k, v = normal(2, 4, 3, 6), normal(2, 6, 3, 6), normal(2, 6, 3, 6) * 2
    seen = None if diagonal is None else torch.ones(4, 6, dtype=torch.bool).tril(diagonal)
    given = [one.transpose(0, 1) if layout.startswith("s") else one for one in (q, k, v)]
    window = (-1, -1) if diagonal is None else (-1, 0)

    found = fused_attention(
        q=given[0], k=given[1], v=given[2], qkv_layout=layout, attn_mask_type=mask, window_size=window
    )

    assert close(found.transpose(0, 1) if layout.startswith("s") else found, attend(q, k, v, seen))


def test_fused_attention_of_padded_sequences() -> None:
    q = normal(2, 4, 3, 6)
    lengths = torch.tensor([0, 2, 6])
    is_there = torch.tensor([[True, True, False, False], [True] * 4])

    found = fused_attention(q=q, k=q, v=q, qkv_layout="bshd_bshd_bshd", attn_mask_type="padding", cu_seqlens_kv=lengths)

    assert close(found, attend(q, q, q, is_there[:, None, None].expand(2, 1, 4, 4)))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_packed_sequences(causal: bool) -> None:
    qkv, ends = normal(6, 3, 2, 4), torch.tensor([0, 2, 6], dtype=torch.int32)

    flash = varlen_attention(qkv=qkv, cu_seqlens=ends, causal=causal)
    q, k, v = qkv.unbind(1)
    fused = fused_attention(
        q=q,
        k=k,
        v=v,
        qkv_layout="t3hd",
        attn_mask_type="padding_causal" if causal else "padding",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
    )

    parts = [[one[start:end].unsqueeze(0) for one in (q, k, v)] for start, end in ((0, 2), (2, 6))]
    masks = [torch.ones(size, size, dtype=torch.bool).tril() if causal else None for size in (2, 4)]
    expected = torch.cat([attend(*part, mask)[0] for part, mask in zip(parts, masks, strict=True)])
    assert close(flash, expected)
    assert close(fused, expected)


def test_rotary_embedding_of_packed_sequences_begins_anew_in_each() -> None:
    freqs, tokens = normal(4, 1, 1, 4), normal(5, 2, 4)

    found = rotary_embedding(t=tokens, freqs=freqs, tensor_format="thd", cu_seqlens=torch.tensor([0, 2, 5]))

    parts = [rotary_embedding(t=part.unsqueeze(1), freqs=freqs).squeeze(1) for part in (tokens[:2], tokens[2:])]
    assert close(found, torch.cat(parts))
    batch_first = rotary_embedding(t=tokens.unsqueeze(0)[:, :4], freqs=freqs, tensor_format="bshd")
    assert close(batch_first[0], rotary_embedding(t=tokens[:4].unsqueeze(1), freqs=freqs).squeeze(1))


def test_what_a_reference_does_not_cover_is_said() -> None:
    q = normal(1, 2, 1, 4)

    with pytest.raises(NotImplementedError, match="sliding window"):
        fused_attention(q=q, k=q, v=q, qkv_layout="bshd_bshd_bshd", window_size=(128, 0))
    with pytest.raises(NotImplementedError, match="arbitrary"):
        fused_attention(q=q, k=q, v=q, qkv_layout="bshd_bshd_bshd", attn_mask_type="arbitrary")
    with pytest.raises(NotImplementedError, match="slopes"):
        varlen_attention(q=q[0], k=q[0], v=q[0], cu_seqlens=torch.tensor([0, 2]), alibi_slopes=normal(1))
    with pytest.raises(NotImplementedError, match="part of a sequence"):
        rotary_embedding(t=q, freqs=normal(2, 1, 1, 4), cp_size=2)
    with pytest.raises(NotImplementedError, match="without groups"):
        grouped_matmul(x=normal(2, 3), weight=normal(1, 3, 4))
