"""The step again, in place: plain to find the first bad micro-batch, then traced; and everything put back.

Every rank makes the same passes: which, is decided from exchanged integers alone.

plain       bad on some rank            traced, and probed where the trace leads to an operator
                                        then the batch of the step before, and a lower loss scale
            bad on no rank, or not      synchronous, then marker fill; traced and probed if the marker brings it back
            in the traced pass
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from megatron_nanguard.arbitration import suspects
from megatron_nanguard.arbitration.call_catcher import CallCatcher, CaughtCall
from megatron_nanguard.arbitration.function_catcher import FunctionCatcher, Moment
from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.arbitrating import NOBODY, Roles
from megatron_nanguard.incident.replaying.passes import Pass, PassAgreement, Passes, PassKind, PassObserver, RankPass
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.records.phrase import LISTED, joined, phrase
from megatron_nanguard.records.step.replay import ReplaySummary, Trial
from megatron_nanguard.records.trace import RankTrace
from megatron_nanguard.replay.in_place import DecisionPoint, Exactness
from megatron_nanguard.tracing.marker_fill import holds_only_markers
from megatron_nanguard.tracing.tracer import Tracer

NOT_KEPT: str = phrase("the state before the replay could not be kept on every rank")
TRACER_FAILED: str = phrase("a part of the guard failed there")


@dataclass(frozen=True)
class Replayed:
    """What this rank learned by running the step again.

    Attributes:
        trace: of the last traced pass; None where nothing was traced.
        changed_after_fetch: micro-batches whose data is no longer what the iterator handed out.
        calls: the suspect calls of this rank, one per origin.
        roles: who asks a peer, and who that is.
    """

    summary: ReplaySummary
    trace: RankTrace | None = None
    changed_after_fetch: tuple[int, ...] = ()
    calls: tuple[CaughtCall, ...] = ()
    roles: Roles = NOBODY


@dataclass
class Replayer:
    """Makes the passes of one incident.

    Args:
        passes: of the call that is replayed.
        is_state_clean: the audit looked at this rank's state and data, and found nothing.
        has_dynamic_scale: a loss scaler adjusts itself, by the votes of all ranks.
        faults: local work beside the passes that fails costs its result.
        lower_scale: outcome of the step far below its loss scale, where that was tried before.
    """

    passes: Passes
    is_state_clean: bool
    has_dynamic_scale: bool
    faults: StageFaults
    lower_scale: Trial = "not_tried"
    _previous_batch: Trial = field(default="not_tried", init=False)
    _calls: tuple[CaughtCall, ...] = field(default=(), init=False)
    _roles: Roles = field(default=NOBODY, init=False)

    @property
    def guarded(self) -> GuardedOptimizer:
        return self.passes.guarded

    def run(self) -> Replayed:
        """Make all passes; afterwards everything is as after the first one.

        Collective: all voters.
        """
        PassKind.PLAIN.begin(self.passes.watchdog)
        call = self.passes.call
        point = self.faults.attempt("replay", lambda: DecisionPoint.take(call), None)
        if self.passes.any_rank(point is None) or point is None:
            return Replayed(ReplaySummary(why_not=NOT_KEPT, obstacle=NOT_KEPT if point is None else ""))
        plain = self.passes.run(PassKind.PLAIN, point)
        # After a pass on the step's own data: what the step itself does to its batch, it has done to both.
        changed: tuple[int, ...] = self.faults.attempt(
            "comparison of the data", lambda: tuple(call.recording.changed_after_fetch()), ()
        )
        rows = self.passes.share("plain", plain)
        agreement = self.passes.agreement(plain)
        trace = self._look_for_the_fault(point, rows)
        lost = point.put_back()
        is_exact = all(row.exact for row in rows)
        return Replayed(self._summary(plain, agreement, lost, is_exact), trace, changed, self._calls, self._roles)

    def _look_for_the_fault(self, point: DecisionPoint, rows: Sequence[RankPass]) -> RankTrace | None:
        """The passes after the plain one.

        Args:
            rows: of the plain pass, from all ranks.
        Collective: all voters.
        """
        if not any(row.came_back for row in rows):
            return self._without_the_fault(point)
        trace = self._trace(point, rows)
        if self.passes.outcomes[-1].came_back == "no":
            return self._without_the_fault(point) or trace
        self._try_previous_batch(point)
        self._try_lower_scale(point)
        return trace

    # ---------------------------------------------------------------- changed conditions

    def _without_the_fault(self, point: DecisionPoint) -> RankTrace | None:
        """The fault did not come back: wait after every operator, then fill fresh memory with a marker.

        Returns:
            The trace of the marker's way, where the fault came back with it.
        """
        self.passes.share("synchronous", self.passes.run(PassKind.WAITING, point))
        rows = self.passes.share("marker", self.passes.run(PassKind.MARKER, point))
        return self._trace(point, rows, marker=True) if any(row.came_back for row in rows) else None

    def _try_previous_batch(self, point: DecisionPoint) -> None:
        """Batch or state? The batch of the last good step on this state, unless the audit of a rank has the answer."""
        recorder = self.guarded.step.recorder
        assert recorder is not None
        if not self.passes.any_rank(not (recorder.previous_fits and self.is_state_clean)):
            seen = self.passes.run(PassKind.PREVIOUS_BATCH, point, batch=recorder.previous)
            self._previous_batch = self.passes.share_trial(seen)

    def _try_lower_scale(self, point: DecisionPoint) -> None:
        """Fault or overflow? The same step far below the loss scale, where a scaler adjusts it."""
        if self.has_dynamic_scale and self.lower_scale == "not_tried":
            self.lower_scale = self.passes.share_trial(self.passes.run(PassKind.AT_LOWER_SCALE, point))

    # ---------------------------------------------------------------- traced

    def _trace(self, point: DecisionPoint, rows: Sequence[RankPass], *, marker: bool = False) -> RankTrace:
        """Trace the first bad micro-batch of all ranks; where an operator is found, look at it closely once more.

        Collective: all voters.
        """
        microbatch = min((row.first_bad for row in rows if row.first_bad is not None), default=None)
        trace, seen = self._traced(PassKind.TRACED, point, microbatch, marker)
        self.passes.share("traced", seen)
        found = frozenset(origin.event for origin in trace.origins)
        return self._probe(point, trace, found, microbatch, marker) if self.passes.any_rank(bool(found)) else trace

    def _probe(
        self, point: DecisionPoint, trace: RankTrace, found: frozenset[int], microbatch: int | None, marker: bool
    ) -> RankTrace:
        """Trace once more and catch the suspect calls; what was caught counts if the fault behaves as before.

        Args:
            trace: of the traced pass.
            found: events of that pass which are its origins.
        Returns:
            The trace that holds.
        Collective: all voters.
        """
        rank, number = self.guarded.coordinates.rank, self.guarded.step.number
        nothing: tuple[CallCatcher, dict[int, FunctionCatcher]] = (CallCatcher(frozenset(), rank=rank), {})
        catcher, functions = self.faults.attempt(
            "catching of calls",
            lambda: (CallCatcher(suspects.suspect_events(trace), rank=rank), suspects.function_catchers(trace)),
            nothing,
        )
        probed, seen = self._traced(PassKind.PROBED, point, microbatch, marker, found, catcher, functions.values())
        self.passes.share("probed", seen)
        if self.passes.outcomes[-1].came_back == self.passes.outcomes[-2].came_back:
            trace = known = trace if probed.broken else probed
            of_functions = {event: function.call for event, function in functions.items()}
            self._calls = self.faults.attempt(
                "suspect calls", lambda: suspects.caught_calls(known, number, catcher.calls, of_functions), ()
            )
        else:
            # The calls that were caught are not the ones that failed.
            self._calls = self.faults.attempt("suspect calls", lambda: suspects.gone_calls(trace, number), ())
        can_ask = bool(self._calls) and not self._calls[0].saved.why_not
        voters = self.passes.voters
        all_calls = exchange((len(self._calls), int(can_ask)), voters, self.guarded.torch_device)
        self._roles = Roles.of(all_calls, voters.ranks)
        return trace

    def _traced(
        self,
        kind: PassKind,
        point: DecisionPoint,
        microbatch: int | None,
        marker: bool,
        probed_events: frozenset[int] = frozenset(),
        catcher: CallCatcher | None = None,
        functions: Collection[FunctionCatcher] = (),
    ) -> tuple[RankTrace, Pass]:
        """One traced pass.

        Args:
            marker: fresh memory is filled with a marker.
            probed_events: origins of the pass before.
            catcher: keeps the suspect calls.
            functions: catch the calls of autograd Functions that are suspect.
        """
        guarded = self.guarded
        rank, label = guarded.coordinates.rank, guarded.coordinates.label(guarded.sizes)
        where = ", outside of any micro-batch" if microbatch is None else f", micro-batch {microbatch}"
        lost = RankTrace(rank=rank, coords=label, microbatch=microbatch, broken=TRACER_FAILED)

        def make() -> Tracer:
            tracer = Tracer(
                guarded.chunks,
                {module: name for name, module in name_modules(guarded.chunks).items()},
                {guarded.names.parameter(entry): entry.name for entry in guarded.names.entries},
                rank,
                microbatch,
                marker_fill=marker,
                probed_events=probed_events,
                call_observer=catcher,
                call_listeners=functions,
            )
            for function in functions:
                function.now = partial(_moment, tracer)
                if marker:
                    function.is_unwritten = holds_only_markers
            return tracer

        tracer = self.faults.attempt("tracer", make, None)
        if tracer is None:
            # The other ranks make this pass.
            return lost, self.passes.run(kind, point, where=where)
        seen = self.passes.run(kind, point, PassObserver.tracing(tracer), where=where)
        return self.faults.attempt("summary of the trace", lambda: tracer.summarize(label), lost), seen

    # ---------------------------------------------------------------- summary

    def _summary(self, plain: Pass, agreement: PassAgreement, lost: Sequence[str], is_exact: bool) -> ReplaySummary:
        """The summary of the replay for the post-mortem.

        Args:
            lost: what could not be put back bit for bit.
            is_exact: the plain pass was as the first one on every rank.
        """
        notes: list[str] = [phrase("not restored bit for bit: {lost}", lost=", ".join(lost))] if lost else []
        if not plain.exactness.exact and not agreement.finite_exact:
            notes.append(_difference(plain.exactness))
        return ReplaySummary(
            done=True,
            exact=is_exact,
            stages=(*self.passes.stages, *notes),
            passes=tuple(self.passes.outcomes),
            previous_batch=self._previous_batch,
            lower_scale=self.lower_scale,
            finite_exact=agreement.finite_exact,
            only_losses=agreement.only_losses,
        )


def _moment(tracer: Tracer) -> Moment | None:
    """Where the traced pass is; None outside of the traced micro-batch."""
    if not tracer.is_in_microbatch:
        return None
    place = tracer.place()
    return Moment(tracer.next_event, place.module, place.phase)


def _difference(exactness: Exactness) -> str:
    """Say in what the plain pass differs from the first one, and by how much."""
    what = phrase("the replay differs from the first pass in {what}", what=joined(LISTED, exactness.differs))
    largest = exactness.tolerance
    if largest is None:
        how_much: str = ""
    elif math.isfinite(largest):
        how_much = phrase("gradients within {largest:.1e}", largest=largest)
    else:
        how_much = phrase("some finite in only one of the two")
    return joined(LISTED, (what, how_much))
