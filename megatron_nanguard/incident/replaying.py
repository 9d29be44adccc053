"""The step again, in place: plain to find the first bad micro-batch, then traced; and everything put back.

Every rank makes the same passes: which, is decided from exchanged integers alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from megatron_nanguard.arbitration.call_catcher import CallCatcher, CaughtCall
from megatron_nanguard.arbitration.function_catcher import FunctionCatcher
from megatron_nanguard.arbitration.suspects import (
    caught_calls,
    function_name,
    gone_calls,
    suspect_events,
    suspect_function,
)
from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.arbitrating import NOBODY, Roles
from megatron_nanguard.incident.passes import NOWHERE, PLAIN_STEPS, TRACED_STEPS, Pass, Passes
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.records.phrase import LISTED, joined, phrase
from megatron_nanguard.records.replay import ReplaySummary, Trial
from megatron_nanguard.records.trace import RankTrace, TracedOrigin
from megatron_nanguard.replay import DecisionPoint
from megatron_nanguard.replay.changed_conditions import LOWER_SCALE, SYNCHRONOUS, Synchronous, lower_scale
from megatron_nanguard.tracing.marker_fill import MarkerFill
from megatron_nanguard.tracing.tracer import Tracer


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
class Replayer:
    """Runs the passes of one incident.

    Args:
        passes: of the call that is replayed.
        deadline: seconds, beyond what a pass may take.
        median_step: seconds of a healthy step.
        is_state_clean: the audit looked at this rank's state and data, and found nothing.
        has_dynamic_scale: a loss scaler adjusts itself, by the votes of all ranks.
        lower_scale: what became of the step far below its scale, where that was tried before.
    """

    passes: Passes
    watchdog: Watchdog
    deadline: float
    median_step: float
    is_state_clean: bool
    has_dynamic_scale: bool
    lower_scale: Trial = "not_tried"
    calls: tuple[CaughtCall, ...] = field(default=(), init=False)
    roles: Roles = field(default=NOBODY, init=False)

    @property
    def subject(self) -> GuardedOptimizer:
        return self.passes.subject

    @property
    def voters(self) -> Voters:
        return self.passes.voters

    def run(self) -> Replayed:
        """All passes; afterwards everything is as after the first one.

        Collective: all voters.
        """
        self.watchdog.stage("plain replay", self.deadline + PLAIN_STEPS * self.median_step)
        call = self.passes.call
        point = DecisionPoint.take(call)
        plain = self.passes.run(point, "plain")
        # After a pass on the step's own data: what the step itself does to its batch, it has done to both.
        changed = tuple(call.recording.changed_after_fetch())
        rows = self.passes.tell("plain", plain)
        finite_exact, only_losses = self.passes.agreed(plain)
        previous: Trial = "not_tried"
        lower = self.lower_scale
        if any(came_back for came_back, _, _ in rows):
            trace: RankTrace | None = self._trace(point, rows)
            if self.passes.told[-1].came_back == "no":
                trace = self._experiment(point) or trace
            else:
                previous = self._previous_batch(point)
                lower = self._lower_scale(point)
        else:
            trace = self._experiment(point)
        lost = point.put_back()
        exact = all(exact for _, exact, _ in rows)
        notes: list[str] = [phrase("not restored bit for bit: {lost}", lost=", ".join(lost))] if lost else []
        if not plain.exact and not finite_exact:
            how = phrase("the replay differs from the first pass in {what}", what=joined(LISTED, plain.differs))
            notes.append(joined(LISTED, (how, _tolerance(plain.tolerance))))
        summary = ReplaySummary(
            True,
            "",
            exact,
            (*self.passes.stages, *notes),
            tuple(self.passes.told),
            previous,
            lower,
            finite_exact=finite_exact,
            only_losses=only_losses,
        )
        return Replayed(summary, trace, changed, self.calls, self.roles)

    def _experiment(self, point: DecisionPoint) -> RankTrace | None:
        """The fault did not come back: wait after every operator, then fill fresh memory; what vanishes tells."""
        self.watchdog.stage("synchronous replay", self.deadline + TRACED_STEPS * self.median_step)
        self.passes.tell("synchronous", self.passes.run(point, SYNCHRONOUS, during=Synchronous(self.subject.device)))
        self.watchdog.stage("marker replay", self.deadline + TRACED_STEPS * self.median_step)
        rows = self.passes.tell("marker", self.passes.run(point, "marker fill", during=MarkerFill()))
        return self._trace(point, rows, marker=True) if any(came_back for came_back, _, _ in rows) else None

    def _previous_batch(self, point: DecisionPoint) -> Trial:
        """Batch or state? The batch of the last good step on this state, where no rank knows better from the audit."""
        recorder = self.subject.recorder
        assert recorder is not None
        mine = recorder.previous_fits and self.is_state_clean
        if not all(fits for (fits,) in exchange((int(mine),), self.voters, self.subject.torch_device)):
            return "not_tried"
        self.watchdog.stage("replay of the previous batch", self.deadline + PLAIN_STEPS * self.median_step)
        return self.passes.tried(self.passes.run(point, "previous batch", batch=recorder.previous))

    def _lower_scale(self, point: DecisionPoint) -> Trial:
        """Fault or overflow? The same step far below the loss scale, where one adjusts itself."""
        if not self.has_dynamic_scale or self.lower_scale != "not_tried":
            return self.lower_scale
        self.watchdog.stage("replay at a lower scale", self.deadline + PLAIN_STEPS * self.median_step)
        return self.passes.tried(self.passes.run(point, LOWER_SCALE, during=lower_scale(self.subject.chunks)))

    def _trace(self, point: DecisionPoint, rows: Sequence[tuple[bool, bool, int]], marker: bool = False) -> RankTrace:
        """Trace the first bad micro-batch of all ranks, then look closely at what the walk back ended at."""
        first = min(first for _, _, first in rows)
        microbatch = None if first == NOWHERE else first
        self.watchdog.stage("traced replay", self.deadline + TRACED_STEPS * self.median_step)
        trace, seen = self._traced(point, "traced", microbatch, frozenset(), marker)
        self.passes.tell("traced", seen)
        found = frozenset(origin.event for origin in trace.origins)
        if any(row[0] for row in exchange((len(found),), self.voters, self.subject.torch_device)):
            self.watchdog.stage("probing replay", self.deadline + TRACED_STEPS * self.median_step)
            catcher = CallCatcher(suspect_events(trace), rank=self.subject.coordinates.rank)
            region = self._region_of(trace)
            probed, seen = self._traced(point, "probed", microbatch, found, marker, catcher, region)
            self.passes.tell("probed", seen)
            kept = None if region is None else region.call
            if self.passes.told[-1].came_back == self.passes.told[-2].came_back:
                trace = probed
                self.calls = caught_calls(trace, self.subject.step, catcher.calls, kept)
            else:
                # What was kept is another call than the one that failed.
                self.calls = gone_calls(trace, self.subject.step)
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
        region: FunctionCatcher | None = None,
    ) -> tuple[RankTrace, Pass]:
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
            seen = self.passes.run(point, f"{stage}, {words}", tracer)
        return tracer.summarize(place.label(subject.sizes)), seen

    def _region_of(self, trace: RankTrace) -> FunctionCatcher | None:
        """Who keeps the call of the autograd Function that stands accused; None when none does."""
        accused: TracedOrigin | None = suspect_function(trace)
        return FunctionCatcher(function_name(accused), rank=self.subject.coordinates.rank) if accused else None


def _tolerance(largest: float | None) -> str:
    if largest is None:
        return ""
    if math.isfinite(largest):
        return phrase("gradients within {largest:.1e}", largest=largest)
    return phrase("some finite in only one of the two")
