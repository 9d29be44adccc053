"""The step again, in place: plain to find the first bad micro-batch, then traced; and everything put back.

Every rank makes the same passes: which, is decided from exchanged integers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from megatron_nanguard.arbitration.accused import accused_events, accused_region, caught_calls, region_name
from megatron_nanguard.arbitration.capture import CallCatcher, CaughtCall
from megatron_nanguard.arbitration.regions import RegionCatcher
from megatron_nanguard.coordination.electorate import Voters
from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.incident.arbitrating import NOBODY, Roles
from megatron_nanguard.incident.subject import Subject
from megatron_nanguard.parameters.naming import name_modules
from megatron_nanguard.records.replay import BatchTrial, CameBack, PassLabel, ReplayPass, ReplaySummary
from megatron_nanguard.records.trace import RankTrace, TracedOrigin
from megatron_nanguard.replay import DecisionPoint, FirstBad, RecordedCall
from megatron_nanguard.replay import replay as call_again
from megatron_nanguard.replay.experiments import SYNCHRONOUS, Synchronous
from megatron_nanguard.replay.recording import Batch
from megatron_nanguard.sentinel import AfterReduction, BeforeReduction, Losses
from megatron_nanguard.tracing.prefill import MarkerFill
from megatron_nanguard.tracing.tracer import Tracer

NOWHERE = 2**31
"""Sent for the first bad micro-batch where none was bad."""
PLAIN_STEPS, TRACED_STEPS = 5, 20
"""Healthy steps that a pass may take beyond the deadline."""

Exercise = Callable[[], AbstractContextManager[None]]
"""Entered around each pass: plants drills again, as they would fire again."""


@dataclass(frozen=True)
class Replayed:
    """What this rank learned by running the step again.

    Attributes:
        trace: of the last traced pass; None where nothing was traced.
        changed_after_fetch: micro-batches whose data is no longer what the iterator handed out.
        calls: the accused calls of this rank, one per origin.
        roles: who asks a peer, and who that is.
    """

    summary: ReplaySummary
    trace: RankTrace | None = None
    changed_after_fetch: tuple[int, ...] = ()
    calls: tuple[CaughtCall, ...] = ()
    roles: Roles = NOBODY


@dataclass
class _Pass:
    """One pass and what this rank saw in it."""

    came_back: bool
    exact: bool
    differs: tuple[str, ...]
    tolerance: float | None
    first_bad: int
    seconds: float


@dataclass
class Replayer:
    """Runs the passes of one incident.

    Args:
        median_step: seconds of a healthy step.
        bad_ranks: those that were bad in the first pass.
        is_state_clean: the audit looked at this rank's state and data, and found nothing.
    """

    subject: Subject
    call: RecordedCall
    voters: Voters
    watchdog: Watchdog
    deadline: float
    median_step: float
    exercise: Exercise
    bad_ranks: frozenset[int]
    is_state_clean: bool
    stages: list[str] = field(default_factory=list)
    passes: list[ReplayPass] = field(default_factory=list)
    calls: tuple[CaughtCall, ...] = ()
    roles: Roles = NOBODY

    def run(self) -> Replayed:
        """All passes; afterwards everything is as after the first one.

        Collective: all voters.
        """
        self.watchdog.stage("plain replay", self.deadline + PLAIN_STEPS * self.median_step)
        point = DecisionPoint.take(self.call)
        plain = self._pass(point, "plain")
        # After a pass on the step's own data: what the step itself does to its batch, it has done to both.
        changed = tuple(self.call.recording.changed_after_fetch())
        rows = self._tell("plain", plain)
        previous: BatchTrial = "not_tried"
        if any(came_back for came_back, _, _ in rows):
            trace: RankTrace | None = self._trace(point, rows)
            if self.passes[-1].came_back == "no":
                trace = self._experiment(point) or trace
            else:
                previous = self._previous_batch(point)
        else:
            trace = self._experiment(point)
        lost = point.put_back()
        exact = all(exact for _, exact, _ in rows)
        notes = [f"not restored bit for bit: {', '.join(lost)}"] if lost else []
        if not plain.exact:
            how = "" if plain.tolerance is None else f", gradients within {plain.tolerance:.1e}"
            notes.append(f"the replay differs from the first pass in {', '.join(plain.differs)}{how}")
        summary = ReplaySummary(True, "", exact, (*self.stages, *notes), tuple(self.passes), previous)
        return Replayed(summary, trace, changed, self.calls, self.roles)

    def _experiment(self, point: DecisionPoint) -> RankTrace | None:
        """The fault did not come back: wait after every operator, then fill fresh memory; what vanishes tells."""
        self.watchdog.stage("synchronous replay", self.deadline + TRACED_STEPS * self.median_step)
        self._tell("synchronous", self._pass(point, SYNCHRONOUS, during=Synchronous(self.subject.device)))
        self.watchdog.stage("marker replay", self.deadline + TRACED_STEPS * self.median_step)
        rows = self._tell("marker", self._pass(point, "marker fill", during=MarkerFill()))
        return self._trace(point, rows, marker=True) if any(came_back for came_back, _, _ in rows) else None

    def _previous_batch(self, point: DecisionPoint) -> BatchTrial:
        """Batch or state? The batch of the last good step on this state, where no rank knows better from the audit."""
        recorder = self.subject.recorder
        assert recorder is not None
        mine = recorder.previous_fits and self.is_state_clean
        if not all(fits for (fits,) in exchange((int(mine),), self.voters, self.subject.torch_device)):
            return "not_tried"
        self.watchdog.stage("replay of the previous batch", self.deadline + PLAIN_STEPS * self.median_step)
        seen = self._pass(point, "previous batch", batch=recorder.previous)
        rows = exchange((int(seen.came_back),), self.voters, self.subject.torch_device)
        return "bad" if any(is_bad for (is_bad,) in rows) else "finite"

    def _trace(self, point: DecisionPoint, rows: Sequence[tuple[bool, bool, int]], marker: bool = False) -> RankTrace:
        """Trace the first bad micro-batch of all ranks, then look closely at what the walk back ended at."""
        first = min(first for _, _, first in rows)
        microbatch = None if first == NOWHERE else first
        self.watchdog.stage("traced replay", self.deadline + TRACED_STEPS * self.median_step)
        trace, seen = self._traced(point, "traced", microbatch, frozenset(), marker)
        self._tell("traced", seen)
        found = frozenset(origin.event for origin in trace.origins)
        if any(row[0] for row in exchange((len(found),), self.voters, self.subject.torch_device)):
            self.watchdog.stage("probing replay", self.deadline + TRACED_STEPS * self.median_step)
            catcher = CallCatcher(accused_events(trace), rank=self.subject.coordinates.rank)
            region = self._region_of(trace)
            trace, _ = self._traced(point, "probed", microbatch, found, marker, catcher, region)
            kept = None if region is None else region.call
            self.calls = caught_calls(trace, self.subject.step, catcher.calls, kept)
            can_ask = bool(self.calls) and not self.calls[0].saved.why_not
            self.roles = Roles.of(
                exchange((len(self.calls), int(can_ask)), self.voters, self.subject.torch_device), self.voters.ranks
            )
        return trace

    def _traced(
        self,
        point: DecisionPoint,
        stage: str,
        microbatch: int | None,
        probe: frozenset[int],
        marker: bool,
        catcher: CallCatcher | None = None,
        region: RegionCatcher | None = None,
    ) -> tuple[RankTrace, _Pass]:
        subject = self.subject
        place = subject.coordinates
        tracer = Tracer(
            subject.chunks,
            {module: name for name, module in name_modules(subject.chunks).items()},
            {subject.names.parameter(entry): entry.name for entry in subject.names.entries},
            place.rank,
            microbatch,
            marker=marker,
            probe=probe,
            catcher=catcher,
        )
        words = "outside of any micro-batch" if microbatch is None else f"micro-batch {microbatch}"
        if region is not None:
            region.is_wanted = lambda: tracer.is_in_microbatch
        with region or nullcontext():
            seen = self._pass(point, f"{stage}, {words}", tracer)
        return tracer.summarize(place.label(subject.sizes)), seen

    def _region_of(self, trace: RankTrace) -> RegionCatcher | None:
        """Who keeps the call of the autograd Function that stands accused; None when none does."""
        accused: TracedOrigin | None = accused_region(trace)
        return RegionCatcher(region_name(accused), rank=self.subject.coordinates.rank) if accused else None

    def _pass(
        self,
        point: DecisionPoint,
        stage: str,
        tracer: Tracer | None = None,
        during: AbstractContextManager[Any] | None = None,
        batch: Batch | None = None,
    ) -> _Pass:
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
        bad_losses = [i for i, (loss, _) in enumerate(losses.read()) if not _is_finite(loss)]
        bad = [*first_bad.read(seen.taken()), *bad_losses] if tracer is None else []
        norms = [bucket.norms for bucket in seen.taken()] + ([] if after.norms is None else [after.norms])
        came_back = bool(bad) or any(not bool(torch.isfinite(norm).all()) for norm in norms)
        return _Pass(
            came_back,
            exactness.exact,
            exactness.differs,
            exactness.tolerance,
            min(bad, default=NOWHERE),
            result.seconds,
        )

    def _tell(self, label: PassLabel, mine: _Pass) -> list[tuple[bool, bool, int]]:
        """(came back, exact, first bad micro-batch) of every rank."""
        row = (int(mine.came_back), int(mine.exact), mine.first_bad)
        rows = exchange(row, self.voters, self.subject.torch_device)
        again = {rank for rank, (came_back, _, _) in zip(self.voters.ranks, rows, strict=True) if came_back}
        came_back: CameBack = "no" if not again else "yes" if again == self.bad_ranks else "partly"
        self.passes.append(ReplayPass(label, came_back))
        return [(bool(came_back), bool(exact), first) for came_back, exact, first in rows]


def _is_finite(value: float) -> bool:
    return value - value == 0.0
