"""A real Triton kernel, in Triton's interpreter, which copies what the kernel writes back by visible operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatron_nanguard import trace_nan

pytest.importorskip("triton")


class Scale(nn.Module):
    def __init__(self, function: Any, fault: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 2.0))
        self.function, self.fault = function, fault

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.function.apply(x, self.weight, self.fault)
        return scaled


def traced(monkeypatch: pytest.MonkeyPatch, fault: str) -> list[tuple[str, str]]:
    """Operator and module of each origin in a model whose second scale has the fault."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from tests.unit.tracing.triton_kernel import TritonScale  # It is compiled when it is imported.

    torch.manual_seed(0)
    layers = [layer for part in ("", fault, "") for layer in (nn.Linear(8, 8), Scale(TritonScale, part))]
    model, x = nn.Sequential(*layers), torch.randn(4, 8)
    origins = trace_nan(lambda: model(x).square().mean().backward()).origins
    return [(origin.operator, origin.place.module) for origin in origins]


@pytest.mark.parametrize(
    ("fault", "origins"),
    [("forward", [("TritonScale.forward", "3")]), ("backward", [("TritonScaleBackward", "3")]), ("", [])],
)
def test_a_triton_kernel_is_named_and_not_the_copies_of_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, fault: str, origins: list[tuple[str, str]]
) -> None:
    assert traced(monkeypatch, fault) == origins
