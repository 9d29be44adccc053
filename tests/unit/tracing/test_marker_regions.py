"""Under marker fill: what a region leaves unwritten, reads before it writes it, or gets and never touches."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from megatron_nanguard.records.trace import OriginKind, RankTrace
from tests.unit.tracing.steps import looked_at_closely


def memory(tensor: Tensor) -> Any:
    """The elements of a tensor, behind the back of the dispatcher."""
    pointer = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    return np.frombuffer(pointer, np.float32).reshape(tuple(tensor.shape))


def twice(out: Any, x: Any, own: Any, given: Any) -> None:
    out[...] = 2 * x


def twice_but_the_last_row(out: Any, x: Any, own: Any, given: Any) -> None:
    out[:-1] = 2 * x[:-1]


def adds_own_workspace(out: Any, x: Any, own: Any, given: Any) -> None:
    out[...] = x + own


def adds_given_workspace(out: Any, x: Any, own: Any, given: Any) -> None:
    out[...] = x + given


def fills_given_workspace(out: Any, x: Any, own: Any, given: Any) -> None:
    given[...] = x
    out[...] = x + given


def wrong(out: Any, x: Any, own: Any, given: Any) -> None:
    out[...] = 2 * x
    out[0, 1] = math.nan


class Kernel(torch.autograd.Function):
    """Works past the dispatcher, and saves a workspace that it may never touch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Callable[..., None], workspace: Tensor) -> Tensor:
        x, out, own = x.contiguous(), torch.empty(x.shape), torch.empty(x.shape)
        with np.errstate(invalid="ignore"):
            compute(*(memory(one) for one in (out, x, own, workspace)))
        ctx.save_for_backward(own)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.contiguous()
        out = torch.empty(grad.shape)
        memory(out)[...] = 2 * memory(grad)
        return out, None, None


def run(compute: Callable[..., None], x: Tensor) -> Tensor:
    return Kernel.apply(x, compute, torch.empty(x.shape))  # type: ignore[no-any-return]


def traced(compute: Callable[..., None]) -> RankTrace:
    return looked_at_closely(partial(run, compute), marker_fill=True)


@pytest.mark.parametrize("compute", [twice, fills_given_workspace])
def test_a_workspace_that_is_not_read_before_it_is_written_is_no_fault(compute: Callable[..., None]) -> None:
    found = traced(compute)

    assert (found.broken, found.origins, found.sinks) == ("", (), ())


def test_rows_that_a_region_has_not_written_are_named() -> None:
    (origin,) = traced(twice_but_the_last_row).origins

    assert (origin.kind, origin.operator, origin.place.module) == (
        OriginKind.NEVER_WRITTEN,
        "Kernel.forward",
        "layers.0",
    )
    assert [(facts.name, facts.nan_count, facts.layout) for facts in origin.outputs] == [("0", 4, "row 1")]


@pytest.mark.parametrize("compute", [adds_own_workspace, adds_given_workspace, wrong])
def test_a_region_with_a_bad_result_is_the_one_origin_and_a_workspace_is_no_input(compute: Callable[..., None]) -> None:
    """Whether it has read the workspace, or is wrong beside it, only another run of it can tell."""
    (origin,) = traced(compute).origins

    assert (origin.kind, origin.operator, origin.place.phase) == (OriginKind.UNSEEN, "Kernel.forward", "forward")
    assert [(facts.name, facts.pattern) for facts in origin.inputs] == [("x", "finite")]
