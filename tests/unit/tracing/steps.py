"""A small model and a schedule of micro-batches, for tests that plant a fault and trace it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megatron_nanguard.records.trace import RankTrace
from megatron_nanguard.tracing.tracer import Tracer


class Block(nn.Module):
    """A linear layer, then the function that the test gives."""

    def __init__(self, width: int, inside: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(self.linear(x))


class Model(nn.Module):
    """Two blocks; the function that the test gives runs in the first."""

    def __init__(self, inside: Callable[[Tensor], Tensor] = torch.tanh, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width, inside), Block(width, torch.tanh)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Schedule:
    """Runs micro-batches one after the other, adding into `main_grad`, and traces one of them."""

    def __init__(
        self, model: nn.Module, microbatch: int | None = 1, gradients: Tensor | None = None, **options: Any
    ) -> None:
        """Prepare the model and its tracer.

        Args:
            model: gets a `main_grad` for each parameter.
            microbatch: the one to trace.
            gradients: a bucket for all `main_grad`s, which each backward scales as a whole; None for separate tensors.
            options: of the tracer.
        """
        self.bucket = gradients
        self.model, self.microbatch = model, microbatch
        self.current = -1
        names = {module: name for name, module in model.named_modules() if name}
        params = {param: name for name, param in model.named_parameters()}
        start = 0
        for param in params:
            end = start + param.numel()
            param.main_grad = torch.zeros_like(param) if gradients is None else gradients[start:end].view_as(param)
            start = end
        self.tracer = Tracer([model], names, params, 3, microbatch, **options)

    def run(self, batches: Sequence[Tensor], loss_of: Callable[[Tensor], Tensor] = torch.sum) -> RankTrace:
        """Run forward and backward of each batch under the tracer."""
        with self.tracer:
            self.untraced(batches, loss_of)
        self.tracer.finish()
        return self.tracer.summarize("tp0pp0dp0")

    def untraced(self, batches: Sequence[Tensor], loss_of: Callable[[Tensor], Tensor] = torch.sum) -> None:
        """Do the same without entering the tracer."""
        for number, batch in enumerate(batches):
            self.current = number
            with self.tracer.at(number, 0, False):
                loss = loss_of(self.model(batch))
            self.tracer.add_loss(number, loss)
            with self.tracer.at(number, 0, True):
                loss.backward()
                self._accumulate()
                self.tracer.after_backward(number, 0)

    def _accumulate(self) -> None:
        for param in self.model.parameters():
            if param.grad is not None:
                param.main_grad.add_(param.grad)
                param.grad = None
        if self.bucket is not None:
            self.bucket.mul_(0.5)


def batches(count: int = 3, rows: int = 2, width: int = 4) -> list[Tensor]:
    """Return micro-batches without bad values."""
    return [torch.linspace(-1.0, 1.0, rows * width).reshape(rows, width) + number for number in range(count)]


def trace(inside: Callable[[Tensor], Tensor], **options: Any) -> RankTrace:
    """Trace the second of three micro-batches."""
    torch.manual_seed(0)
    return Schedule(Model(inside), **options).run(batches())


def looked_at_closely(inside: Callable[[Tensor], Tensor], **options: Any) -> RankTrace:
    """Trace twice: the second pass looks closely at what the first found."""
    first = trace(inside, **options)
    return trace(inside, **options, probed_events=frozenset(origin.event for origin in first.origins))
