"""Collectives inside of a Function send what its kernels wrote, and its kernels read what they bring."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from tests.unit.tracing.unseen_kernels import WIDTH, Linear, kernel, layers, memory, places

pytestmark = pytest.mark.usefixtures("world_of_one")

gathered = torch.zeros(3, WIDTH)


class RowParallel(Function):
    """Reduces what its kernel wrote over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, fault: str) -> Tensor:
        out = Linear.forward(ctx, x, weight, fault)
        dist.all_reduce(out)
        return out

    backward = Linear.backward


class Gathering(Function):
    """Gathers the input into a buffer that all layers share, which its kernel reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, fault: str) -> Tensor:
        work = dist.all_gather_single(gathered, x.contiguous(), async_op=True)
        work.wait()
        ctx.save_for_backward(x, weight)
        ctx.fault = fault
        out = torch.empty(x.shape[0], weight.shape[0])
        return kernel(out, memory(gathered) @ memory(weight).T, spoils=fault == "forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        into_x, into_weight, _ = Linear.backward(ctx, grad)
        work = dist.all_reduce(into_x, async_op=True)
        work.wait()
        return into_x, into_weight, None


@pytest.mark.parametrize("function", [RowParallel, Gathering])
@pytest.mark.parametrize("fault", ["", "forward", "grad of x", "grad of weight"])
def test_the_kernel_that_wrote_what_is_sent_is_the_origin(function: Any, fault: str) -> None:
    model: nn.Module = layers("", fault, "", call=function.apply)
    found = places(model)
    assert [module for _, module in found] == (["2"] if fault else [])
    assert all(operator.startswith((function.__name__, "Linear")) for operator, _ in found)
