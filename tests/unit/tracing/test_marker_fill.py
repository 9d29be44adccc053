"""Fresh memory holds the marker in this pass; everything else is as it was."""

from __future__ import annotations

import torch

from megatron_nanguard.tracing.marker_fill import MarkerFill


def test_memory_that_nobody_writes_turns_out_nan() -> None:
    with MarkerFill():
        half = torch.empty(4)
        half[:2].copy_(torch.ones(2))

    assert half.isnan().tolist() == [False, False, True, True]


def test_a_step_that_writes_before_it_reads_keeps_its_bits() -> None:
    torch.manual_seed(1)
    weight = torch.randn(4, 4, requires_grad=True)
    values = torch.randn(3, 4)
    (torch.nn.functional.gelu(values @ weight)).sum().backward()
    plain, weight.grad = weight.grad, None

    with MarkerFill():
        (torch.nn.functional.gelu(values @ weight)).sum().backward()

    assert weight.grad is not None and plain is not None
    assert torch.equal(weight.grad, plain)


def test_integers_are_left_alone() -> None:
    with MarkerFill():
        counts = torch.empty(3, dtype=torch.int64).zero_()

    assert counts.tolist() == [0, 0, 0]
