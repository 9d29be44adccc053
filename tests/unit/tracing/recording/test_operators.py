"""What the schema of an operator says of a call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from megatron_nanguard.tracing.recording.operators import CallKind, Operator, has_bad_constant

ops = torch.ops.aten
A, B, C = torch.zeros(2, 2), torch.ones(2, 2), torch.full((2, 2), 2.0)


def names_read(func: Any, *args: Any, **kwargs: Any) -> list[tuple[str, int | None]]:
    return [(name, index) for name, index, _ in Operator.of(func).reads(args, kwargs)]


@pytest.mark.parametrize(
    ("func", "kind"),
    [
        (ops.add.Tensor, CallKind.OPERATOR),
        (ops.add_.Tensor, CallKind.OPERATOR),
        (ops.view.default, CallKind.VIEW),
        (ops.detach.default, CallKind.VIEW),
        (ops._local_scalar_dense.default, CallKind.VIEW),
        (ops.empty.memory_format, CallKind.EMPTY),
        (ops.new_empty_strided.default, CallKind.EMPTY),
        (ops.zeros.default, CallKind.OPERATOR),
        (torch.ops.c10d.allreduce_.default, CallKind.MESSAGE),
        (torch.ops._c10d_functional.all_reduce.default, CallKind.MESSAGE),
        (torch.ops._c10d_functional.wait_tensor.default, CallKind.VIEW),
    ],
)
def test_kinds(func: Any, kind: CallKind) -> None:
    assert Operator.of(func).kind is kind


def test_higher_order_operator_is_taken_as_a_whole() -> None:
    operator = Operator.of(torch.ops.higher_order.cond)
    assert (operator.kind, operator.written) == (CallKind.OPERATOR, ())
    assert [tensor is A for _, _, tensor in operator.reads([A, 1], {})] == [True]


def test_in_place_operator_reads_and_writes_its_first_argument() -> None:
    assert names_read(ops.add_.Tensor, A, B) == [("self", None), ("other", None)]
    assert [tensor is A for tensor in Operator.of(ops.add_.Tensor).writes([A, B], {})] == [True]


@pytest.mark.parametrize(
    ("func", "args", "read"),
    [
        (ops.copy_.default, (A, B), [("src", None)]),
        (ops.fill_.Scalar, (A, 1.0), []),
        (ops.zero_.default, (A,), []),
        (ops._foreach_copy_.default, ([A], [B]), [("src", 0)]),
    ],
)
def test_destination_of_a_write_is_not_read(func: Any, args: Any, read: Any) -> None:
    assert names_read(func, *args) == read


def test_out_argument_is_written_and_not_read() -> None:
    operator = Operator.of(ops.add.out)
    assert names_read(ops.add.out, A, B, out=C) == [("self", None), ("other", None)]
    assert [tensor is C for tensor in operator.writes([A, B], {"out": C})] == [True]


def test_first_argument_under_beta_zero_is_not_read() -> None:
    assert names_read(ops.addmm.default, A, B, C, beta=0) == [("mat1", None), ("mat2", None)]
    assert names_read(ops.addmm.default, A, B, C) == [("self", None), ("mat1", None), ("mat2", None)]


def test_lists_are_read_with_the_place_in_them() -> None:
    assert names_read(ops.cat.default, [A, B]) == [("tensors", 0), ("tensors", 1)]
    assert Operator.of(ops._foreach_add_.List).parallel
    assert not Operator.of(ops.cat.default).parallel


@pytest.mark.parametrize(
    ("values", "bad"),
    [((A, -math.inf), True), ((A, [0.0, math.nan]), True), ((A, 1.0, 3, None, "x"), False), ((), False)],
)
def test_constants(values: Any, bad: bool) -> None:
    assert has_bad_constant(values) is bad
