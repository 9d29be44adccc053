"""The loss of each micro-batch, as the loss function returned it on the last pipeline stage."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from megatron_nanguard.megatron_api.protocols import ForwardStep, LossFunction

Guarded = Callable[[str], AbstractContextManager[None]]


class Losses:
    """Losses and token counts of one step, kept on the device.

    Args:
        on_loss: called with the micro-batch and its loss as soon as it is computed.
        guarded: gives the context in which our code runs inside the host's loss function, by name.
    """

    def __init__(
        self, on_loss: Callable[[int, Tensor], None] | None = None, guarded: Guarded = lambda where: nullcontext()
    ) -> None:
        self._on_loss, self._guarded = on_loss, guarded
        self.seen: list[tuple[Tensor, Tensor | None]] = []
        """Loss, and number of tokens where it is a sum over them."""

    def clear(self) -> None:
        """Drop the losses of the last step."""
        self.seen.clear()

    def listen(self, forward_step_func: ForwardStep) -> ForwardStep:
        """Return a forward step whose loss function also records the losses.

        Source: megatron/core/pipeline_parallel/schedules.py, forward_step: ``output, loss_func`` is returned
        """

        @functools.wraps(forward_step_func)
        def forward_step(*args: object, **kwargs: object) -> object:
            returned = forward_step_func(*args, **kwargs)
            if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1]):
                return returned[0], self._listening(returned[1])
            return returned

        return forward_step

    def _listening(self, loss_func: LossFunction) -> LossFunction:
        @functools.wraps(loss_func)
        def loss(*args: object, **kwargs: object) -> object:
            returned = loss_func(*args, **kwargs)
            if not kwargs.get("non_loss_data", False) and isinstance(returned, tuple):
                with self._guarded("loss"):
                    self._record(returned)
            return returned

        # A functools.partial has no __name__; wraps copies what there is.
        return loss

    def _record(self, returned: tuple[object, ...]) -> None:
        """(loss, logged) or (loss sum, number of tokens, logged); the schedule divides the loss in place afterwards."""
        if not isinstance(returned[0], Tensor) or returned[0].numel() != 1:
            return
        loss = returned[0].detach().to(torch.float32, copy=True).reshape(())
        if self._on_loss is not None:
            self._on_loss(len(self.seen), loss)
        tokens = returned[1] if len(returned) == 3 else None
        self.seen.append((loss, tokens.detach().clone().reshape(()) if isinstance(tokens, Tensor) else None))

    def bad(self) -> Tensor | None:
        """Return bool [] on the device: some loss is not finite. None if this rank computes no loss.

        Sync: none.
        """
        return ~torch.isfinite(torch.stack([loss for loss, _ in self.seen])).all() if self.seen else None

    def read(self) -> list[tuple[float, int | None]]:
        """Return mean loss and number of tokens of each micro-batch.

        Sync: one host read per micro-batch; only on an alarm.
        """
        found = []
        for loss, tokens in self.seen:
            count = None if tokens is None else int(tokens)
            found.append((float(loss) / count if count else float(loss), count))
        return found
