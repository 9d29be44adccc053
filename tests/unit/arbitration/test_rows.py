"""Which operators are cut to rows, and that a cut call gives what the whole one gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
import torch
from torch import Tensor

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.rows import choose_rows
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.suspect_call import RowCut
from tests.unit.arbitration.calls import catch

aten = torch.ops.aten
X = torch.linspace(-1, 1, 64 * 6).reshape(64, 6)
X[40, 2] = float("nan")
W = torch.linspace(0, 1, 6 * 5).reshape(6, 5)
SQUARE = X[:, :1].expand(64, 64) + X[:, 2:3]
BATCH = X.reshape(32, 2, 6)

BY_ROWS: dict[str, Callable[[], Any]] = {
    "aten.log.default": X.log,
    "aten.mul.Tensor": lambda: X * X[0],
    "aten.where.self": lambda: torch.where(X < 0, 0.0, X),
    "aten.mm.default": lambda: X @ W,
    "aten.addmm.default": lambda: torch.addmm(W[0], X, W),
    "aten.bmm.default": lambda: torch.bmm(BATCH, BATCH.transpose(1, 2)),
    "aten._softmax.default": lambda: X.softmax(-1),
    "aten._log_softmax.default": lambda: X.log_softmax(1),
    "aten.native_layer_norm.default": lambda: torch.native_layer_norm(X, [6], W[:, 0], W[:, 1], 1e-5),
    "aten.embedding.default": lambda: aten.embedding.default(X, torch.arange(64).reshape(32, 2)),
    "aten.gelu.default": lambda: torch.nn.functional.gelu(X),
    "aten._to_copy.default": lambda: X.half(),
    "aten.copy_.default": lambda: torch.ones(64, 6).copy_(X),
}
NOT_BY_ROWS: dict[str, Callable[[], Any]] = {
    "aten._softmax.default": lambda: X.softmax(0),
    "aten.native_layer_norm.default": lambda: torch.native_layer_norm(X, [64, 6], None, None, 1e-5),
    "aten.sum.dim_IntList": lambda: X.sum(1),
    "aten.cumsum.default": lambda: X.cumsum(0),
    "aten.bernoulli.p": lambda: torch.bernoulli(X, 0.5),
    "aten.sum.default": X.sum,
}


@pytest.mark.parametrize("operator", BY_ROWS)
def test_the_rows_alone_give_what_they_gave_in_the_whole(operator: str) -> None:
    call = catch(BY_ROWS[operator], operator)

    assert call.saved.rows is not None
    outputs = repro.run(
        orjson.loads(to_json(call.saved)),
        call.tensors,
        torch.device("cpu"),
        repro.function_of(repro.find_operator(operator)),
    )
    whole = [tensor for _, tensor in repro.named(BY_ROWS[operator](), {})]
    for (_, cut), expected in zip(outputs, whole, strict=True):
        chosen = expected[list(call.saved.rows.rows)]
        assert torch.allclose(cut, chosen, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert not torch.isfinite(cut).all()


@pytest.mark.parametrize("operator", NOT_BY_ROWS)
def test_where_rows_depend_on_each_other_the_call_stays_whole(operator: str) -> None:
    call = catch(NOT_BY_ROWS[operator], operator)

    assert call.saved.rows is None
    assert call.saved.tensors["self" if "self" in call.saved.tensors else "input"].shape == (64, 6)


def test_a_bias_with_as_many_elements_as_rows_is_broadcast_and_not_cut() -> None:
    call = catch(lambda: SQUARE + SQUARE[0], "aten.add.Tensor")

    assert call.saved.rows is not None
    assert call.saved.tensors["other"].shape == (64,)


@pytest.mark.parametrize(
    ("bad", "rows"),
    [
        ([], None),
        ([30], (0, 1, 2, 3, 30)),
        ([1, 2], (0, 1, 2, 3, 4, 5)),
        (list(range(64)), tuple(range(16))),
    ],
)
def test_bad_rows_come_first_and_four_good_ones_along(bad: list[int], rows: tuple[int, ...] | None) -> None:
    output: Tensor = torch.zeros(64, 2)
    output[bad] = float("inf")

    assert choose_rows([output]) == (None if rows is None else RowCut(rows, 64))


def test_a_small_call_is_not_cut() -> None:
    assert choose_rows([torch.full((20, 2), float("nan"))]) is None
