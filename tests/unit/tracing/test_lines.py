"""The line that issued an operator."""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_nanguard.tracing.lines import Line, Lines


def test_words_for_a_line() -> None:
    def here() -> Line | None:
        return Lines().here()

    line = here()
    assert line is not None
    assert str(line) == f"test_lines.py:{line.number} in here"


def test_method_goes_by_its_class_where_python_tells_it() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Line | None:
            return Lines().here()

    line = Layer()(torch.ones(1))
    assert line.function in ("Layer.forward", "forward")
