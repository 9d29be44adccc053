"""The passes of a replay: which there are, one of them made on this rank, and its outcome exchanged with the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.megatron_api.schedules import Around
from megatron_nanguard.records.step.replay import CameBack, PassLabel, ReplayPass, Trial
from megatron_nanguard.replay.changed_conditions import LOWER_SCALE, SYNCHRONOUS, Synchronous, lower_scale
from megatron_nanguard.replay.data_iterators import Batch
from megatron_nanguard.replay.first_bad import FirstBad
from megatron_nanguard.replay.in_place import DecisionPoint, Exactness
from megatron_nanguard.replay.in_place import replay as call_again
from megatron_nanguard.replay.step_recorder import RecordedCall
from megatron_nanguard.sentinel.gradient_norms import AfterReduction, BucketNorms
from megatron_nanguard.sentinel.losses import Losses
from megatron_nanguard.tracing.marker_fill import MarkerFill
from megatron_nanguard.tracing.tracer import Tracer

NOWHERE = 2**31
"""Sent for the first bad micro-batch where none was bad."""
Conditions = Callable[[GuardedOptimizer], AbstractContextManager[Any]]


def _at_lower_scale(guarded: GuardedOptimizer) -> AbstractContextManager[Any]:
    return lower_scale(guarded.chunks)


class PassKind(Enum):
    """One kind of pass.

    Attributes:
        label: in the post-mortem.
        stage: for the watchdog.
        healthy_steps: how many times the duration of a healthy step it may take beyond the deadline.
        conditions: what it runs under, entered around the call.
    """

    PLAIN = "plain", "plain replay", 5
    SCALE_CHECK = LOWER_SCALE, "check at a lower scale", 5, _at_lower_scale
    TRACED = "traced", "traced replay", 20
    PROBED = "probed", "probing replay", 20
    WAITING = SYNCHRONOUS, "synchronous replay", 20, lambda guarded: Synchronous(guarded.device)
    MARKER = "marker fill", "marker replay", 20, lambda guarded: MarkerFill()
    PREVIOUS_BATCH = "previous batch", "replay of the previous batch", 5
    AT_LOWER_SCALE = LOWER_SCALE, "replay at a lower scale", 5, _at_lower_scale

    def __init__(self, label: str, stage: str, healthy_steps: int, conditions: Conditions = nullcontext) -> None:
        self.label, self.stage, self.healthy_steps, self.conditions = label, stage, healthy_steps, conditions

    def begin(self, watchdog: Watchdog) -> None:
        """Its time begins."""
        watchdog.stage(self.stage, healthy_steps=self.healthy_steps)


@dataclass(frozen=True)
class PassObserver:
    """Looks at one pass: a plain one at gradients and losses only, a traced one at every operator.

    Attributes:
        surrounding: entered around the schedule's call.
        after_backward: called with micro-batch and chunk when a backward step of a chunk is over.
        first_bad: gives the first micro-batch in which a gradient turned bad, from the norms before the reduction of
            the same pass.
        finish: called when the pass is over; its gradients are those that the optimizer would get.
        heard_loss: called with the micro-batch and its loss at the moment it is known.
        around_step: entered around each forward and backward step of the schedule.
    """

    surrounding: AbstractContextManager[Any]
    after_backward: Callable[[int | None, int], None]
    first_bad: Callable[[Sequence[BucketNorms]], int | None]
    finish: Callable[[], None] = lambda: None
    heard_loss: Callable[[int, Tensor], None] | None = None
    around_step: Around | None = None

    @classmethod
    def plain(cls, chunks: Sequence[ModelChunk], conditions: AbstractContextManager[Any] | None = None) -> PassObserver:
        """Finds the micro-batches in which a gradient turned bad, and changes nothing in the pass.

        Args:
            conditions: entered around the call, to run the pass under changed conditions.
        """
        first_bad = FirstBad(chunks)
        return cls(conditions or nullcontext(), first_bad.look, first_bad.read)

    @classmethod
    def tracing(cls, tracer: Tracer) -> PassObserver:
        """Lets a tracer read along. The micro-batch it traces was found before, so it reports none."""
        return cls(tracer, tracer.after_backward, lambda before: None, tracer.finish, tracer.add_loss, tracer.at)


@dataclass(frozen=True)
class Pass:
    """What this rank saw in one pass.

    Attributes:
        came_back: a gradient or loss was bad.
        first_bad: the first bad micro-batch; None where none was bad.
        exactness: how true it was to the first pass.
        same_losses: every loss that is finite in the first pass and in this one is the same.
    """

    came_back: bool
    first_bad: int | None
    exactness: Exactness
    same_losses: bool

    @property
    def finite_agrees(self) -> bool | None:
        """What is finite in both passes is the same, gradients and losses; None where that was not compared."""
        return self.exactness.finite_agrees and self.same_losses


class RankPass(NamedTuple):
    """What one rank reports of a pass; as the first bad micro-batch None where none was bad."""

    came_back: bool
    exact: bool
    first_bad: int | None


class PassAgreement(NamedTuple):
    """Whether a pass agrees with the first one, over all ranks.

    Attributes:
        finite_exact: what is finite in both is the same on every rank; None where a rank did not compare.
        only_losses: ranks of which the losses alone were compared.
    """

    finite_exact: bool | None
    only_losses: tuple[int, ...]


@dataclass
class Passes:
    """The passes of one incident.

    Args:
        call: of the schedule in this step.
        bad_ranks: those that were bad in the first pass.
    Attributes:
        stages: every pass with its duration, for a person.
        outcomes: of the passes that have a label.
    """

    guarded: GuardedOptimizer
    call: RecordedCall
    voters: Voters
    watchdog: Watchdog
    bad_ranks: frozenset[int] = frozenset()
    stages: list[str] = field(default_factory=list)
    outcomes: list[ReplayPass] = field(default_factory=list)

    def run(
        self,
        kind: PassKind,
        point: DecisionPoint,
        observer: PassObserver | None = None,
        *,
        batch: Batch | None = None,
        where: str = "",
    ) -> Pass:
        """Make the call once more.

        Args:
            point: where the first pass ended.
            observer: looks at the pass; a plain one under the conditions of the kind if None.
            batch: of another step.
            where: what is traced, for the name of the pass.
        Collective: all voters.
        """
        kind.begin(self.watchdog)
        guarded, chunks = self.guarded, self.guarded.chunks
        observer = observer or PassObserver.plain(chunks, kind.conditions(guarded))
        losses = Losses(observer.heard_loss)
        forward_step = losses.listen(self.call.kwargs["forward_step_func"])
        call = replace(self.call, kwargs={**self.call.kwargs, "forward_step_func": forward_step})
        with guarded.step.fresh_norms() as before:
            after = AfterReduction(chunks)
            with guarded.drills_again():
                result = call_again(call, observer.surrounding, observer.around_step, observer.after_backward, batch)
            after.look()
            observer.finish()
            exactness = point.compare(result)
        self.stages.append(f"{kind.label}{where}: {result.seconds:.2f} s")
        now = [loss for loss, _ in losses.read()]
        bad = [microbatch for microbatch, loss in enumerate(now) if not math.isfinite(loss)]
        first_bad = observer.first_bad(before.taken())
        if first_bad is not None:
            bad.append(first_bad)
        norms = [bucket.norms for bucket in before.taken()] + ([] if after.norms is None else [after.norms])
        came_back = bool(bad) or any(not bool(torch.isfinite(norm).all()) for norm in norms)
        return Pass(came_back, min(bad, default=None), exactness, self._same_losses(now))

    def _same_losses(self, now: Sequence[float]) -> bool:
        """Whether every loss that is finite in the first pass and now is the same."""
        first = (loss for loss, _ in self.guarded.step.losses.read())
        return all(a == b for a, b in zip(first, now, strict=False) if math.isfinite(a) and math.isfinite(b))

    # ---------------------------------------------------------------- over all ranks

    def share(self, label: PassLabel, mine: Pass) -> list[RankPass]:
        """Exchange what came of a pass, and note whether the fault came back. One row per voter.

        Collective: all voters.
        """
        rows = [
            RankPass(bool(came_back), bool(exact), None if first_bad == NOWHERE else first_bad)
            for came_back, exact, first_bad in self._exchange(
                int(mine.came_back), int(mine.exactness.exact), NOWHERE if mine.first_bad is None else mine.first_bad
            )
        ]
        again = {rank for rank, row in zip(self.voters.ranks, rows, strict=True) if row.came_back}
        came_back: CameBack = "no" if not again else "yes" if again == self.bad_ranks else "partly"
        self.outcomes.append(ReplayPass(label, came_back))
        return rows

    def share_trial(self, mine: Pass) -> Trial:
        """Whether a pass on other data or at another scale was bad on any rank.

        Collective: all voters.
        """
        return "bad" if any(is_bad for (is_bad,) in self._exchange(int(mine.came_back))) else "finite"

    def agreement(self, mine: Pass) -> PassAgreement:
        """Whether what is finite in both passes is the same on all ranks.

        Collective: all voters.
        """
        agrees = -1 if mine.finite_agrees is None else int(mine.finite_agrees)
        rows = self._exchange(agrees, int(mine.exactness.has_finite))
        only_losses = tuple(
            rank
            for rank, (agrees, has_finite) in zip(self.voters.ranks, rows, strict=True)
            if agrees == 1 and not has_finite
        )
        return PassAgreement(
            None if any(agrees == -1 for agrees, _ in rows) else all(agrees for agrees, _ in rows), only_losses
        )

    def any_rank(self, here: bool) -> bool:
        """Whether something holds on any rank.

        Collective: all voters.
        """
        return any(there for (there,) in self._exchange(int(here)))

    def _exchange(self, *row: int) -> list[list[int]]:
        """Collective: all voters."""
        return exchange(row, self.voters, self.guarded.torch_device)
