"""Both sets of kernels against PyTorch: the layers are right before anything is planted in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.opaque import kernels
from tests.opaque.kernels import Attention, Float8

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
ANYWHERE = torch.arange(4)


@pytest.fixture(params=["c", "numpy"], autouse=True)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test runs on both sets."""
    monkeypatch.setenv("OPAQUE_KERNELS", request.param)
    kernels.library.cache_clear()
    if request.param == "c" and kernels.library() is None:
        pytest.skip("no C compiler")
    yield
    kernels.library.cache_clear()


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=CLOSE[found.dtype], atol=CLOSE[found.dtype])


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_in_all_layouts_accumulate_and_take_a_bias(dtype: torch.dtype) -> None:
    x, weight, bias, grad = (values(*shape, dtype=dtype) for shape in ((5, 7), (3, 7), (3,), (5, 3)))
    out, dx, main_grad = torch.empty(5, 3, dtype=dtype), torch.empty(5, 7, dtype=dtype), torch.ones(3, 7)

    kernels.gemm(x, weight, out, bias=bias, right_t=True)
    kernels.gemm(grad, weight, dx)
    kernels.gemm(grad, x, main_grad, left_t=True, accumulate=True)

    assert_near(out, functional.linear(x.float(), weight.float(), bias.float()))
    assert_near(dx, grad.float() @ weight.float())
    assert_near(main_grad, 1 + grad.float().T @ x.float())


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_their_gradients(dtype: torch.dtype, rms: bool) -> None:
    x, weight, grad = values(5, 8, dtype=dtype), values(8, dtype=dtype, seed=1), values(5, 8, dtype=dtype, seed=2)
    bias = None if rms else values(8, dtype=dtype, seed=3)
    out, dx, dw, db = (torch.empty_like(like) for like in (x, x, weight, weight))
    statistics = torch.empty(5), torch.empty(5)

    kernels.norm_forward(x, weight, bias, out, *statistics, 1e-5, rms)
    kernels.norm_backward(grad, x, statistics, weight, dx, dw, None if rms else db, rms)

    leaves = [tensor.float().requires_grad_() for tensor in (x, weight, *([] if bias is None else [bias]))]
    norm = functional.rms_norm if rms else functional.layer_norm
    expected = norm(leaves[0], (8,), *leaves[1:], eps=1e-5)
    expected.backward(grad.float())
    assert_near(out, expected)
    for found, leaf in zip((dx, dw, db), leaves, strict=False):
        assert_near(found, leaf.grad)


def test_gelu() -> None:
    x, grad = values(4, 6).requires_grad_(), values(4, 6, seed=1)
    out, dx = torch.empty(4, 6), torch.empty(4, 6)

    kernels.gelu_forward(x, out)
    kernels.gelu_backward(grad, x, dx)

    expected = functional.gelu(x)
    expected.backward(grad)
    assert_near(out, expected)
    assert_near(dx, x.grad)


@pytest.mark.parametrize("mask_type", [kernels.NO_MASK, kernels.CAUSAL, kernels.ARBITRARY])
def test_attention_of_grouped_keys_in_strided_memory(mask_type: int) -> None:
    # The three are slices of one tensor, as Megatron splits them; [s, b, h, d].
    mixed = values(4, 2, 2 * 4, 3).requires_grad_()
    q, k, v = mixed[:, :, :4], mixed[:, :, 4:6], mixed[:, :, 6:]
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[1, :, 3] = True
    how = Attention(0.5, 0.0, mask_type, ANYWHERE, ANYWHERE, torch.zeros(2, dtype=torch.int64), mask)
    out, lse, grad = torch.empty(q.shape), torch.empty(1, 2, 4, 4), values(*q.shape, seed=1)
    found = tuple(torch.empty(tensor.shape) for tensor in (q, k, v))

    kernels.attention_forward(q, k, v, out, lse, how)
    kernels.attention_backward(grad, q, k, v, out, lse, found, how)

    hidden = {kernels.CAUSAL: ~torch.ones(4, 4, dtype=torch.bool).tril(), kernels.ARBITRARY: mask[:, None]}
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (q, k, v)]
    heads = [leaf.permute(1, 2, 0, 3) for leaf in leaves]
    seen = None if mask_type == kernels.NO_MASK else ~hidden[mask_type]
    expected = functional.scaled_dot_product_attention(*heads, attn_mask=seen, scale=0.5, enable_gqa=True)
    expected.permute(2, 0, 1, 3).backward(grad)
    assert_near(out, expected.permute(2, 0, 1, 3))
    for gradient, leaf in zip(found, leaves, strict=True):
        assert_near(gradient, leaf.grad)


def test_attention_dropout_is_the_same_in_forward_and_backward() -> None:
    q, k = torch.zeros(4, 1, 1, 4), torch.zeros(4, 1, 1, 4)
    v, rng_state = torch.eye(4).view(4, 1, 1, 4), torch.tensor([11, 0])
    how = Attention(1.0, 0.5, kernels.NO_MASK, ANYWHERE, ANYWHERE, rng_state)
    out, lse = torch.empty(q.shape), torch.empty(1, 1, 1, 4)
    gradients = tuple(torch.empty(q.shape) for _ in range(3))

    kernels.attention_forward(q, k, v, out, lse, how)
    kernels.attention_backward(torch.eye(4).view(4, 1, 1, 4), q, k, v, out, lse, gradients, how)

    weights = out.view(4, 4)
    assert {*weights.flatten().tolist()} == {0.0, 0.5}
    # The gradient of value j is the weight with which query i saw it.
    assert torch.equal(gradients[2].view(4, 4), weights.T)


def test_a_row_that_sees_nothing_is_zero() -> None:
    q = values(1, 1, 1, 2)
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    how = Attention(1.0, 0.0, kernels.ARBITRARY, ANYWHERE, ANYWHERE, torch.zeros(2, dtype=torch.int64), mask)
    out, lse = torch.empty(q.shape), torch.empty(1, 1, 1, 1)

    kernels.attention_forward(q, q, q, out, lse, how)

    assert out.flatten().tolist() == [0.0, 0.0]
    assert lse.item() == -torch.inf


def test_rope_turns_and_turns_back() -> None:
    x, angles = values(3, 2, 2, 6), values(3, 1, 1, 4, seed=1)
    out, back = torch.empty(x.shape), torch.empty(x.shape)

    kernels.rope(x, angles, out)
    kernels.rope(out, torch.cat((angles[..., :2], angles[..., :2]), -1), back, back=True)

    turned = x[..., :4]
    crossed = torch.cat((-turned[..., 2:], turned[..., :2]), -1)
    assert_near(out, torch.cat((turned * angles.cos() + crossed * angles.sin(), x[..., 4:]), -1))
    grad = values(*x.shape, seed=2)
    of_x = torch.empty(x.shape)
    kernels.rope(grad, angles, of_x, back=True)
    assert abs((of_x * x).sum() - (grad * out).sum()) < 1e-4, "the backward is the transpose"


def test_tokens_go_to_their_experts_and_come_back() -> None:
    tokens, routing_map = values(3, 2), torch.tensor([[1, 0], [1, 1], [0, 1]], dtype=torch.bool)
    rows, pairs = torch.empty(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    factors, out, back = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.empty(4, 2), torch.empty(3, 2)

    assert kernels.sort_by_expert(routing_map, rows, pairs) == 4
    kernels.gather_rows(tokens, rows, factors, out)
    kernels.scatter_rows(out, rows, None, back)

    assert (rows.tolist(), pairs.tolist()) == ([0, 1, 1, 2], [0, 2, 3, 5])
    assert_near(out, tokens[[0, 1, 1, 2]] * factors[:, None])
    assert_near(back, tokens * torch.tensor([[1.0], [5.0], [4.0]]))


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_float8_is_pytorchs_and_the_largest_value_is_remembered(name: str, dtype: torch.dtype) -> None:
    x = torch.cat((values(500) * 8, torch.tensor([0.0, 1e-3, -1e-5, 30000.0, -torch.nan])))
    data, scale_inv, amax, out = (
        torch.empty(505, dtype=torch.uint8),
        torch.empty(1),
        torch.tensor([3.0]),
        torch.empty(505),
    )

    kernels.quantize(x, Float8(data, name), torch.tensor([2.0]), amax, scale_inv)
    kernels.dequantize(Float8(data, name), scale_inv, out)

    largest = torch.finfo(dtype).max
    expected = (x * 2).clamp(-largest, largest).to(dtype).float() / 2
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    assert (amax.item(), scale_inv.item()) == (30000.0, 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fault_writes_where_it_is_told_and_its_twin_changes_nothing(dtype: torch.dtype) -> None:
    x = values(2, 4, dtype=dtype)
    before = x.clone()

    kernels.spoil(x, 4, 3, None)
    assert torch.equal(x, before)

    kernels.spoil(x, 4, 3, torch.nan)
    assert x.isnan().flatten().tolist() == [False] * 4 + [True] * 3 + [False]


def test_no_dispatcher_sees_them(chosen: Callable[[], None]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, function: object, *args: object, **kwargs: object) -> object:
            raise AssertionError(f"{function} was seen")

    x, out = values(3, 4, dtype=torch.bfloat16), torch.empty(3, 4)
    with Refusing():
        kernels.gelu_forward(x, out)
        kernels.spoil(x, 0, 1, torch.nan)
    assert x.isnan().sum() == 1
