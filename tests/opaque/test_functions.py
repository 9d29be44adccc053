"""The Functions of experts against what Megatron does without Transformer Engine."""

from __future__ import annotations

import pytest
import torch
from megatron.core.transformer.moe import moe_utils
from torch import Tensor

from tests.opaque import permutation
from tests.opaque.grouped_linear import _GroupedLinear


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(outputs: tuple[Tensor, ...], *leaves: Tensor) -> tuple[Tensor, ...]:
    weights = [torch.linspace(-1, 2, output.numel()).view(output.shape) for output in outputs]
    return torch.autograd.grad(outputs, leaves, weights)


def assert_alike(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_permutation_and_its_reverse() -> None:
    tokens, probs = values(5, 3), values(5, 4, seed=1)
    routing_map = torch.rand(5, 4, generator=torch.Generator().manual_seed(2)) < 0.5
    number = int(routing_map.sum())

    plain = moe_utils.permute(tokens, routing_map, probs, number)
    permuted, of_pairs, row_id_map = permutation.moe_permute_with_probs(tokens, probs, routing_map, number)
    back = permutation.moe_unpermute(permuted * of_pairs[:, None], row_id_map, restore_shape=tokens.shape)
    expected = moe_utils.unpermute(plain[0] * plain[1][:, None], plain[2], tokens.shape, routing_map=routing_map)

    assert_alike((permuted, of_pairs, back), (plain[0], plain[1], expected))
    assert_alike(gradients((back,), tokens, probs), gradients((expected,), tokens, probs))


@pytest.mark.parametrize("sizes", [[2, 0, 3], [0, 0, 5]])
def test_sorting_of_chunks(sizes: list[int]) -> None:
    rows, probs, split_sizes, order = values(5, 3), values(5, seed=1), torch.tensor(sizes), torch.tensor([2, 0, 1])

    expected = moe_utils.sort_chunks_by_idxs(rows, split_sizes, order, probs)
    found = permutation.moe_sort_chunks_by_index_with_probs(rows, probs, split_sizes, order)

    assert_alike(found, expected)
    assert_alike(gradients(found, rows, probs), gradients(expected, rows, probs))


def test_experts_of_which_one_has_no_tokens() -> None:
    rows, weights = values(5, 3), [values(2, 3, seed=number) for number in (1, 2, 3)]
    splits = [2, 0, 3]

    found = _GroupedLinear.apply(rows, splits, (False, False, torch.float32, ""), *weights)
    expected = torch.cat([part @ weight.T for part, weight in zip(rows.split(splits), weights, strict=True)])

    assert_alike((found,), (expected,))
    assert_alike(gradients((found,), rows, *weights), gradients((expected,), rows, *weights))
