"""References of the kernels of mixtures of experts: grouped matrix products, and tokens brought into another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional


def grouped_linear(*, inp: Tensor, m_splits: Tensor | Sequence[int], **more: object) -> Tensor:
    """One linear layer for each group of rows, as in Transformer Engine; weights come first, then the biases."""
    splits = [int(size) for size in m_splits]
    given = [value for name, value in more.items() if name.startswith("weights_and_biases.")]
    weights, biases = given[: len(splits)], given[len(splits) :]
    results = []
    for index, rows in enumerate(torch.split(inp.reshape(-1, inp.shape[-1])[: sum(splits)], splits)):
        weight, bias = weights[index], biases[index] if index < len(biases) else None
        assert isinstance(weight, Tensor)
        has_bias = isinstance(bias, Tensor) and bias.numel() > 0
        results.append(functional.linear(rows, weight, bias if has_bias else None))  # type: ignore[arg-type]
    return torch.cat(results)


def grouped_matmul(
    *,
    x: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    group_list_type: int = 0,
    a: Tensor | None = None,
    b: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    trans_b: bool = False,
    **_: object,
) -> Tensor:
    """One matrix product for each group of rows; names of MindSpeed, whose groups are ends or sizes, then grouped_gemm.

    Raises:
        NotImplementedError: there are no groups.
    """
    rows, matrices = (a, b) if x is None else (x, weight)
    groups = batch_sizes if group_list is None else group_list
    if rows is None or matrices is None or groups is None:
        raise NotImplementedError("no reference for a product without groups")
    sizes = [int(size) for size in groups]
    if batch_sizes is None and group_list_type == 0:
        sizes = [end - start for start, end in zip([0, *sizes], sizes, strict=False)]
    results = []
    for index, part in enumerate(torch.split(rows[: sum(sizes)], sizes)):
        matrix = matrices[index].transpose(-2, -1) if trans_b else matrices[index]
        results.append(part @ matrix if bias is None else part @ matrix + bias[index])
    return torch.cat(results)


def permute_by_index(
    *,
    inp: Tensor,
    indices: Tensor | None = None,
    index: Tensor | None = None,
    num_out_tokens: int = -1,
    **_: object,
) -> Tensor:
    """The rows in the order of their experts, one row for each expert that a token goes to."""
    experts = index if indices is None else indices
    assert experts is not None
    num_experts = experts.shape[1] if experts.dim() > 1 else 1
    order = torch.argsort(experts.reshape(-1), stable=True)
    return inp[(order[:num_out_tokens] if num_out_tokens > 0 else order) // num_experts]


def permute_by_mask(*, inp: Tensor, routing_map: Tensor, **_: object) -> Tensor:
    """The rows in the order of their experts, where the mask [token, expert] is true."""
    return inp[routing_map.bool().T.nonzero()[:, 1]]


def unpermute_by_index(*, inp: Tensor, row_id_map: Tensor, probs: Tensor | None = None, **_: object) -> Tensor:
    """The sum of a token's rows, times their probabilities; the map is [expert of the token, token], -1 is dropped."""
    has_probs = probs is not None and probs.numel() > 0
    num_experts = probs.shape[1] if probs is not None and has_probs else 1
    rows = row_id_map.reshape(num_experts, -1).long()
    found = inp[rows.clamp(min=0)] * (rows >= 0).unsqueeze(-1)
    if probs is not None and has_probs:
        found = found * probs.T.unsqueeze(-1)
    return found.sum(0)


def sort_chunks(*, inp: Tensor, split_sizes: Tensor, sorted_idxs: Tensor, **_: object) -> Tensor:
    """Chunks of rows in another order."""
    chunks = torch.split(inp, [int(size) for size in split_sizes])
    return torch.cat([chunks[int(index)] for index in sorted_idxs])


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "_GroupedLinear": grouped_linear,
    "GMMFunction": grouped_matmul,
    "GroupedGemm": grouped_matmul,
    "_moe_permute": permute_by_index,
    "_moe_permute_index_map": permute_by_index,
    "_moe_permute_mask_map": permute_by_mask,
    "_moe_unpermute": unpermute_by_index,
    "_moe_unpermute_index_map": unpermute_by_index,
    "_moe_chunk_sort": sort_chunks,
}
