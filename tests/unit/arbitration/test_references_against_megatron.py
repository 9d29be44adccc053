"""Each reference against what Megatron itself runs without fused kernels, in float64, backward included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.arbitration.references.activations import geglu, gelu, quick_geglu, squared_relu, swiglu
from megatron_nanguard.arbitration.references.attention_and_rope import (
    causal_softmax,
    dot_product_attention,
    rotary_embedding,
    softmax,
)
from megatron_nanguard.arbitration.references.cross_entropy import cross_entropy
from megatron_nanguard.arbitration.references.layers import linear
from megatron_nanguard.arbitration.references.norms import layernorm, rmsnorm

MASK = torch.zeros(1, 1, 5, 5, dtype=torch.bool)
MASK[..., 3:] = True


@pytest.fixture(autouse=True)
def eager(megatron: Any) -> Iterator[None]:
    """Megatron's fused helpers as they are written, which compiling them would only slow down."""
    from megatron.core import tensor_parallel

    tensor_parallel.model_parallel_cuda_manual_seed(1)
    with torch.compiler.set_stance("force_eager"):
        yield
    tensor_parallel.get_cuda_rng_tracker().reset()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(
    reference: Callable[..., Tensor], local: Callable[..., Tensor], inputs: Sequence[Tensor], tolerance: float = 1e-12
) -> None:
    """Outputs and the gradients of all inputs agree."""
    results = []
    for function in (reference, local):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = function(*leaves)
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).reshape(out.shape)
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for mine, theirs in zip(*results, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def config(**changes: Any) -> Any:
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(num_layers=1, hidden_size=24, num_attention_heads=4, **changes)


@pytest.mark.parametrize(("normalization", "reference"), [("LayerNorm", layernorm), ("RMSNorm", rmsnorm)])
def test_norms(normalization: str, reference: Any) -> None:
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    norm = WrappedTorchNorm(config=config(normalization=normalization), hidden_size=24, eps=1e-5).double()
    inputs = [normal(6, 2, 24), normal(24), normal(24)][: len(list(norm.parameters())) + 1]

    def local(x: Tensor, *weights: Tensor) -> Tensor:
        names = dict(zip(("weight", "bias"), weights, strict=False))
        result: Tensor = torch.func.functional_call(norm, names, (x,))
        return result

    def mine(x: Tensor, *weights: Tensor) -> Tensor:
        return reference(
            input=x, normalized_shape=[24], eps=1e-5, **dict(zip(("weight", "bias"), weights, strict=False))
        )

    assert_same(mine, local, inputs)


def test_gelu() -> None:
    from megatron.core.fusions.fused_bias_gelu import bias_gelu_impl

    # Megatron writes sqrt(2/pi) with eight digits.
    assert_same(lambda x, b: gelu(input=x, bias=b), bias_gelu_impl, [normal(6, 2, 24), normal(24)], 1e-7)


def test_swiglu() -> None:
    from megatron.core.fusions.fused_bias_swiglu import SwiGLUFunction, bias_swiglu_impl, weighted_bias_swiglu_impl

    x, bias, weights = normal(6, 24), normal(24), normal(6, 1)

    assert_same(lambda x, b: swiglu(input=x, bias=b), bias_swiglu_impl, [x, bias])
    assert_same(
        lambda x: swiglu(input=x, fp8_input_store=False, cpu_offload_input=False),
        lambda x: SwiGLUFunction.apply(x, False, False),
        [x],
    )
    assert_same(
        lambda x, w: swiglu(input=x, weights=w),
        lambda x, w: weighted_bias_swiglu_impl(x, None, w),
        [x, weights],
    )


def masked_softmax(scale: float, causal: bool) -> Any:
    from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.utils import attention_mask_func

    kind = AttnMaskType.causal if causal else AttnMaskType.padding
    return FusedScaleMaskSoftmax(False, False, kind, False, attention_mask_func, True, scale)


def test_softmax() -> None:
    local = masked_softmax(0.5, causal=False)

    assert_same(
        lambda x: softmax(inputs=x, scale=0.5, mask=MASK),
        lambda x: local.forward_torch_softmax(x, MASK),
        [normal(2, 3, 5, 5)],
    )


def test_causal_softmax() -> None:
    local = masked_softmax(0.5, causal=True)

    assert_same(
        lambda x: causal_softmax(inputs=x, scale=0.5).unsqueeze(0),
        lambda x: local.forward_torch_softmax(x.unsqueeze(0), None),
        [normal(6, 5, 5)],
    )


@pytest.mark.parametrize("groups", [4, 2])
def test_attention(groups: int) -> None:
    """Megatron's tensors are [seq, batch, head, dim], those of flash-attn [batch, seq, head, dim]."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    settings = config(num_query_groups=groups, attention_dropout=0.0, masked_softmax_fusion=False)
    local = DotProductAttention(settings, 1, AttnMaskType.causal, "self")

    def mine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = [tensor.transpose(0, 1) for tensor in (q, k, v)]
        out = dot_product_attention(q=first[0], k=first[1], v=first[2], causal=True, window_size=(-1, -1))
        return out.transpose(0, 1).flatten(2)

    inputs = [normal(5, 2, 4, 6), normal(5, 2, groups, 6) * 0.5, normal(5, 2, groups, 6)]
    # Megatron's local attention gathers the scores in a buffer of the input's type.
    assert_same(mine, lambda q, k, v: local(q, k, v, None), inputs, 1e-9)


def test_attention_of_torch() -> None:
    query, key, value = normal(2, 4, 5, 6), normal(2, 4, 7, 6), normal(2, 4, 7, 6)

    assert_same(
        lambda q, k, v: dot_product_attention(query=q, key=k, value=v, scale=0.3),
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3),
        [query, key, value],
    )


def test_cross_entropy() -> None:
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    target = torch.tensor([[1, 0], [8, 3], [2, 2]])

    # Megatron computes it in float32.
    assert_same(
        lambda x: cross_entropy(vocab_parallel_logits=x, target=target),
        lambda x: vocab_parallel_cross_entropy(x.clone(), target).double(),
        [normal(3, 2, 9)],
        1e-6,
    )


def test_what_a_reference_does_not_cover_is_said() -> None:
    logits, q = normal(3, 9), normal(1, 2, 1, 4)

    with pytest.raises(NotImplementedError, match="split over ranks"):
        cross_entropy(vocab_parallel_logits=logits, target=torch.tensor([1, 2, 11]))
    with pytest.raises(NotImplementedError, match="smoothed labels"):
        cross_entropy(logits=logits, labels=torch.tensor([1, 2, 3]), smoothing=0.1)
    with pytest.raises(NotImplementedError, match="dropout or a sliding window"):
        dot_product_attention(q=q, k=q, v=q, dropout_p=0.1)
    with pytest.raises(NotImplementedError, match="dropout or a sliding window"):
        dot_product_attention(q=q, k=q, v=q, window_size=(3, 0))
    with pytest.raises(NotImplementedError, match="1099511627776 scores"):
        long = torch.empty(1, 1 << 20, 1, 1)
        dot_product_attention(q=long, k=long, v=long)


def test_geglu() -> None:
    from megatron.core.fusions.fused_bias_geglu import BiasGeGLUFunction, GeGLUFunction

    # Megatron writes sqrt(2/pi) with eight digits.
    assert_same(lambda x: geglu(input=x), GeGLUFunction.apply, [normal(6, 24)], 1e-7)
    assert_same(lambda x, b: geglu(input=x, bias=b), BiasGeGLUFunction.apply, [normal(6, 24), normal(6, 24)], 1e-7)


def test_quick_geglu_and_squared_relu_with_token_weights() -> None:
    from megatron.core.fusions.fused_bias_geglu import WeightedQuickGeGLUFunction
    from megatron.core.fusions.fused_weighted_squared_relu import WeightedSquaredReLUFunction

    offset = torch.tensor(0.5, dtype=torch.float64)

    assert_same(
        lambda x, w: quick_geglu(input=x, weights=w, linear_offset=offset),
        lambda x, w: WeightedQuickGeGLUFunction.apply(x, w, False, offset),
        [normal(6, 24), normal(6, 1)],
    )
    assert_same(
        lambda x, w: squared_relu(input=x, weights=w),
        WeightedSquaredReLUFunction.apply,
        [normal(6, 24), normal(6, 1)],
    )


def test_linear() -> None:
    from megatron.core.tensor_parallel.layers import LinearWithFrozenWeight

    weight, bias = normal(4, 24), normal(4)

    assert_same(
        lambda x: linear(input=x, weight=weight, bias=bias),
        lambda x: LinearWithFrozenWeight.apply(x, weight, bias, False, None),
        [normal(5, 2, 24)],
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding(interleaved: bool) -> None:
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd

    freqs = normal(7, 1, 1, 4)

    # The table may be longer than the sequence, and turn a part of each head alone.
    assert_same(
        lambda t: rotary_embedding(t=t, freqs=freqs, interleaved=interleaved),
        lambda t: _apply_rotary_pos_emb_bshd(t, freqs[:5], rotary_interleaved=interleaved),
        [normal(5, 2, 3, 6)],
    )
