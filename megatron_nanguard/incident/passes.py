"""One pass of the recorded call and what this rank sees in it; then, exchanged, whether the fault came back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.records.replay import CameBack, PassLabel, ReplayPass, Trial
from megatron_nanguard.replay import DecisionPoint, FirstBad, RecordedCall
from megatron_nanguard.replay import replay as call_again
from megatron_nanguard.replay.data_iterators import Batch
from megatron_nanguard.sentinel import AfterReduction, BeforeReduction, Losses
from megatron_nanguard.tracing.tracer import Tracer

NOWHERE = 2**31
"""Sent for the first bad micro-batch where none was bad."""
PLAIN_STEPS, TRACED_STEPS = 5, 20
"""Healthy steps that a pass may take beyond the deadline."""

Exercise = Callable[[], AbstractContextManager[None]]
"""Entered around each pass: plants drills again, as they would fire again."""


@dataclass(frozen=True)
class Pass:
    """What this rank saw.

    Attributes:
        came_back: a gradient or loss was bad.
        exact: everything was as in the first pass, bit for bit.
        differs: what was not.
        tolerance: largest relative difference of the gradients; None where they are the same, or no copy was kept.
        first_bad: micro-batch, or NOWHERE.
        finite_agrees: all gradient elements and losses that are finite in both passes are the same; None where that was
            not compared.
        has_finite: a gradient element is finite in both passes.
    """

    came_back: bool
    exact: bool
    differs: tuple[str, ...]
    tolerance: float | None
    first_bad: int
    finite_agrees: bool | None = None
    has_finite: bool = True


@dataclass
class Passes:
    """The passes of one incident.

    Args:
        bad_ranks: those that were bad in the first pass.
    Attributes:
        stages: every pass with its time, for a person.
        told: what came of those that were told to all.
    """

    subject: GuardedOptimizer
    call: RecordedCall
    voters: Voters
    exercise: Exercise
    bad_ranks: frozenset[int] = frozenset()
    stages: list[str] = field(default_factory=list)
    told: list[ReplayPass] = field(default_factory=list)

    def run(
        self,
        point: DecisionPoint,
        stage: str,
        tracer: Tracer | None = None,
        during: AbstractContextManager[Any] | None = None,
        batch: Batch | None = None,
    ) -> Pass:
        """Make the call once more.

        Args:
            point: where the first pass ended.
            stage: what to call it.
            tracer: reads along.
            during: entered around the call, where nothing reads along.
            batch: of another step.
        Collective: all voters.
        """
        subject, first_bad = self.subject, FirstBad(self.subject.chunks)
        losses = Losses(None if tracer is None else tracer.add_loss)
        listened = {**self.call.kwargs, "forward_step_func": losses.listen(self.call.kwargs["forward_step_func"])}
        call = replace(self.call, kwargs=listened)
        kept, subject.before = subject.before, BeforeReduction(per_parameter=subject.before.per_parameter)
        after = AfterReduction(subject.chunks)
        look = first_bad.look if tracer is None else tracer.after_backward
        with self.exercise():
            result = call_again(call, tracer or during, tracer.at if tracer else None, look, batch)
        after.look()
        if tracer is not None:
            tracer.finish()
        exactness = point.compare(result)
        seen, subject.before = subject.before, kept
        self.stages.append(f"{stage}: {result.seconds:.2f} s")
        losses_now = [loss for loss, _ in losses.read()]
        bad_losses = [number for number, loss in enumerate(losses_now) if not math.isfinite(loss)]
        bad = [*first_bad.read(seen.taken()), *bad_losses] if tracer is None else bad_losses
        norms = [bucket.norms for bucket in seen.taken()] + ([] if after.norms is None else [after.norms])
        came_back = bool(bad) or any(not bool(torch.isfinite(norm).all()) for norm in norms)
        return Pass(
            came_back,
            exactness.exact,
            exactness.differs,
            exactness.tolerance,
            first_bad=min(bad, default=NOWHERE),
            finite_agrees=exactness.finite_agrees and self._same_losses(losses_now),
            has_finite=exactness.has_finite,
        )

    def _same_losses(self, now: Sequence[float]) -> bool:
        """Whether every loss that is finite in the first pass and now is the same."""
        first = (loss for loss, _ in self.subject.losses.read())
        return all(a == b for a, b in zip(first, now, strict=False) if math.isfinite(a) and math.isfinite(b))

    def agreed(self, mine: Pass) -> tuple[bool | None, tuple[int, ...]]:
        """Whether what is finite in both passes is the same on all ranks.

        Returns:
            None where a rank did not compare; and the ranks of which the losses alone were compared.
        Collective: all voters.
        """
        word = -1 if mine.finite_agrees is None else int(mine.finite_agrees)
        rows = exchange((word, int(mine.has_finite)), self.voters, self.subject.torch_device)
        only_losses = tuple(
            rank
            for rank, (word, has_finite) in zip(self.voters.ranks, rows, strict=True)
            if word == 1 and not has_finite
        )
        return None if any(word == -1 for word, _ in rows) else all(word for word, _ in rows), only_losses

    def tried(self, mine: Pass) -> Trial:
        """Whether a pass under changed conditions was bad on any rank.

        Collective: all voters.
        """
        rows = exchange((int(mine.came_back),), self.voters, self.subject.torch_device)
        return "bad" if any(is_bad for (is_bad,) in rows) else "finite"

    def tell(self, label: PassLabel, mine: Pass) -> list[tuple[bool, bool, int]]:
        """(came back, exact, first bad micro-batch) of every rank.

        Collective: all voters.
        """
        row = (int(mine.came_back), int(mine.exact), mine.first_bad)
        rows = exchange(row, self.voters, self.subject.torch_device)
        again = {rank for rank, (came_back, _, _) in zip(self.voters.ranks, rows, strict=True) if came_back}
        came_back: CameBack = "no" if not again else "yes" if again == self.bad_ranks else "partly"
        self.told.append(ReplayPass(label, came_back))
        return [(bool(came_back), bool(exact), first) for came_back, exact, first in rows]
