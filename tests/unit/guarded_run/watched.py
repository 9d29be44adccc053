"""One optimizer of one rank of real Megatron under guard, without the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.settings import Settings
from tests.unit.one_rank import ONES, Trainer, sum_of, trainer


class Watched:
    """A trainer and what the sentinel sees of it."""

    def __init__(self, made: Trainer, settings: Settings, handshake: RunHandshake) -> None:
        self.trainer = made
        self.guarded = GuardedOptimizer(made.optimizer, [made.ddp], handshake.voting_ranks(), settings, Shield())
        self.guarded.learn()

    def run(
        self,
        before: Callable[[Trainer], Any] = lambda made: None,
        after: Callable[[Trainer], Any] = lambda made: None,
        inputs: Sequence[Tensor] = (ONES,),
        loss: Callable[[Tensor], Any] = sum_of,
    ) -> GuardedOptimizer:
        """One pass; what ``before`` and ``after`` the reduction do to the gradients stands there when it is looked at.

        On one rank the reduction changes nothing, so it is told apart by the moment of the look alone.
        """

        def forward_step(data: Any, model: Any) -> Any:
            return model(next(data).to(self.trainer.net.first.weight.dtype)).float(), loss

        kwargs = self.guarded.step.open(lambda **kwargs: None, {"forward_step_func": forward_step})
        self.trainer.forward_backward(inputs, **kwargs)
        before(self.trainer)
        for group in self.trainer.ddp.bucket_groups:
            self.guarded.step.before.look(group, False)
        after(self.trainer)
        self.guarded.step.after.look()
        return self.guarded


@pytest.fixture(scope="module")
def handshake(megatron: Any) -> RunHandshake:
    """One connection to the store for all tests of a file."""
    return RunHandshake((0,), 1)


@pytest.fixture
def watch(handshake: RunHandshake) -> Callable[..., Watched]:
    """``watch(settings, ...)``: a fresh model, nothing kept for a replay; further options are the optimizer's."""

    def make(settings: Settings | None = None, **options: Any) -> Watched:
        return Watched(trainer(**options), replace(settings or Settings(on=True), replay="off"), handshake)

    return make
