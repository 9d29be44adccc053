"""The stages of an incident, in order. Every rank enters with the same votes and leaves with the same decision.

1 signal     evidence of this rank, on disk before anything else can fail
  check      fp16, where the loss scaler may be at work: if it is, the signal is taken back and this is no incident
2 exchange   one record per rank: who was bad before the reduction, who only after it, can all run it again; on disk,
             and merged by one rank
3 audit      what was bad before the step began; on disk
4 replay     the step again in place, traced; this rank's trace on disk, and joined by one rank; everything put back
5 arbitration  the suspect calls again, here, on a peer and in higher precision
6 files      the complete post-mortem, then one merged incident with the origin and the verdict; what the directory did
             not take is sent to the rank that merges
7 capture    the step itself, as far as --nanguard-capture asks for it
"""

from __future__ import annotations

import logging
from functools import partial

from megatron_nanguard.capture.model_state import gradients_by_name
from megatron_nanguard.coordination.vote import all_done, exchange
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.incident import rank_evidence
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.arbitrating import PEER_SECONDS, arbitrate_all, send_first
from megatron_nanguard.incident.auditing import audit_here, with_bad_copies
from megatron_nanguard.incident.capturing import Capturer
from megatron_nanguard.incident.collecting import Collector
from megatron_nanguard.incident.merged_file import MergedFile, sentence
from megatron_nanguard.incident.rank_file import FIRST_VERSION, RankFile, first_postmortem
from megatron_nanguard.incident.rank_summary import ExchangeOutcome, RankSummary, conclude
from megatron_nanguard.incident.replaying.passes import Passes
from megatron_nanguard.incident.replaying.replayer import Replayed, Replayer
from megatron_nanguard.incident.replaying.scale_check import check_scale
from megatron_nanguard.incident.replaying.why_not import refusal, why_no_replay
from megatron_nanguard.incident.sharing import Evidence, gather
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.policy.deciding import decide
from megatron_nanguard.policy.scaler import COUNTED_SKIP
from megatron_nanguard.postmortem.run_directory import trace_name
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.step.replay import ReplaySummary, Trial
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.sentinel.vote_flags import FP32_MAX, Flag
from megatron_nanguard.settings import SAVES_CALLS, SAVES_STEP

log = logging.getLogger("megatron_nanguard")

GUARD_FAILED: str = phrase("a part of the guard failed when this was asked")


def handle(run: GuardedRun, guarded: GuardedOptimizer, alarm: Alarm, *, in_doubt: bool = False) -> PolicyOutcome:
    """Take an alarm through its stages.

    Args:
        in_doubt: the loss scaler may be at work; if it is, the step is a counted skip.
    Returns:
        What is to be done about the step, the same on every rank.
    Collective: all voters; a rank that fails or is late ends the process on every rank with exit code 65.
    """
    watchdog = Watchdog(
        run.handshake.store("incident"),
        run.handshake.rank,
        len(alarm.voters.ranks),
        run.settings.deadline,
        guarded.step.median_seconds,
        speaks=run.handshake.rank == alarm.voters.ranks[0],
    )
    with watchdog:
        decision = _Stages(run, guarded, alarm, watchdog).all(in_doubt=in_doubt)
    run.directory.end_incident()
    if decision is not COUNTED_SKIP and guarded.step.recorder is not None:
        guarded.step.recorder.discard()
    return decision


class _Stages:
    """One incident: its files, and what a stage hands to later ones."""

    def __init__(self, run: GuardedRun, guarded: GuardedOptimizer, alarm: Alarm, watchdog: Watchdog) -> None:
        self._run, self._guarded, self._alarm, self._watchdog = run, guarded, alarm, watchdog
        self._voters, self._files, self._faults = alarm.voters, run.directory, StageFaults(run.failed_stages)
        self._incident = self._files.incident_path(guarded.step.number)
        self._files.begin_incident()
        self._rank_file = RankFile(self._files, self._incident, self._faults)
        self._merged: MergedFile | None = None

    def all(self, *, in_doubt: bool) -> PolicyOutcome:
        """All stages in order."""
        run, guarded, alarm = self._run, self._guarded, self._alarm
        self._begin("signal")
        evidence = self._signal()
        why_not: str = self._faults.attempt("replay", lambda: why_no_replay(guarded), GUARD_FAILED)
        passes = None if why_not else self._passes()
        lower_scale: Trial = "not_tried"
        if in_doubt:
            lower_scale = check_scale(run, guarded, alarm, self._incident, self._watchdog, passes, self._faults)
            if lower_scale != "bad":
                return COUNTED_SKIP
        run.counts["incidents"] += 1
        self._look_at_hardware()
        self._begin("exchange")
        outcome = self._exchange(evidence, can_replay=not why_not)
        self._watchdog.summary = sentence(guarded.step.number, outcome, None)
        refused = refusal(outcome, why_not, self._fault)
        self._after_exchange(outcome, refused)
        audited = self._faults.attempt("audit", lambda: audit_here(guarded, alarm), None)
        self._rank_file.add("findings", audited=audited is not None, audit=audited or ())
        outcome = with_bad_copies(outcome, audited, guarded, alarm)
        decision = decide(run.policy, guarded.step.number, guarded.budget, has_bad_copy=outcome.has_bad_copy)
        gradients = self._first_gradients()
        replayed = self._replay(outcome, refused, passes, lower_scale, is_state_clean=audited == ())
        self._begin("traces")
        has_written_trace = self._after_replay(replayed)
        self._begin("arbitration", seconds=PEER_SECONDS)
        arbitrations = self._arbitrate(replayed)
        self._begin("files")
        has_written = self._complete_rank_file(replayed, arbitrations, decision) and has_written_trace
        sent = self._sent(replayed, has_written=has_written)
        self._begin("merging")
        self._merge(outcome, decision, sent)
        self._capture(replayed, gradients, why_not)
        self._add_faults()
        return decision

    def _begin(self, stage: str, seconds: float = 0.0) -> None:
        """Begin a stage; the time of the one before is over."""
        self._watchdog.stage(stage, seconds=seconds)
        self._files.begin_stage()

    def _all(self, holds: bool) -> bool:
        """Whether something holds on all ranks; no rank returns before all have asked.

        Collective: all voters.
        """
        return all_done(holds, self._voters, self._guarded.torch_device)

    @property
    def _fault(self) -> str | None:
        """A fault of ours on this rank that its evidence depends on."""
        return self._run.shield.fault or self._faults.now.get("signal") or self._faults.now.get(FIRST_VERSION)

    # ---------------------------------------------------------------- signal, exchange

    def _signal(self) -> rank_evidence.RankEvidence:
        """Collect the evidence of this rank and write its first post-mortem."""
        guarded, run = self._guarded, self._run
        limit = FP32_MAX / len(self._voters.ranks)
        evidence = self._faults.attempt(
            "signal", lambda: rank_evidence.collect(guarded, limit), rank_evidence.NOTHING, is_vital=True
        )
        if not self._faults.now:
            self._rank_file.begin(
                lambda: first_postmortem(guarded, self._alarm, evidence, run.run_id, run.policy, run.shield.fault)
            )
        return evidence

    def _look_at_hardware(self) -> None:
        """Start to read the hardware in the background."""
        if self._run.health is not None:
            self._faults.attempt("hardware", self._run.health.poll, None)

    def _exchange(self, evidence: rank_evidence.RankEvidence, *, can_replay: bool) -> ExchangeOutcome:
        """Exchange one row per rank, and conclude the same from them on all.

        Collective: all voters.
        """
        mine = RankSummary(self._guarded.coordinates, evidence.signs, self._fault is not None, can_replay)
        rows = exchange(mine.to_ints(), self._voters, self._guarded.torch_device)
        return conclude([RankSummary.from_ints(row) for row in rows], self._guarded.sizes)

    def _after_exchange(self, outcome: ExchangeOutcome, refused: ReplaySummary | None) -> None:
        """Write down the outcome before a replay that a rank may not come back from; one rank merges all files."""
        postmortem = self._rank_file.postmortem
        if postmortem is not None:
            self._rank_file.add(
                "outcome",
                kind=outcome.kind,
                ranks=outcome.ranks,
                groups=outcome.groups,
                infected_groups=outcome.infected_groups,
                replay=refused or postmortem.replay,
                notes=(*postmortem.notes, *outcome.notes),
            )
        if self._run.handshake.rank == self._voters.ranks[0]:
            saves_calls = self._run.settings.capture in SAVES_CALLS
            self._merged = merged = MergedFile(self._files, self._incident, outcome, saves_calls=saves_calls)
            self._faults.attempt("first merging", lambda: merged.after_exchange(filter(None, [self._mine(None)])), None)

    def _mine(self, replayed: Replayed | None) -> Evidence | None:
        """What this rank has found, from memory."""
        postmortem = self._rank_file.postmortem
        return None if postmortem is None else Evidence(postmortem, replayed.trace if replayed else None)

    # ---------------------------------------------------------------- replay, arbitration

    def _passes(self) -> Passes:
        recorder = self._guarded.step.recorder
        assert recorder is not None and recorder.call is not None
        return Passes(self._guarded, recorder.call, self._voters, self._watchdog)

    def _replay(
        self,
        outcome: ExchangeOutcome,
        refused: ReplaySummary | None,
        passes: Passes | None,
        lower_scale: Trial,
        *,
        is_state_clean: bool,
    ) -> Replayed:
        """Run the step again if all ranks can and there is something to look for.

        Args:
            refused: why it is not run again.
            passes: None where this rank cannot.
            lower_scale: outcome of the check at a lower scale, if there was one.
            is_state_clean: the audit of this rank found nothing.
        Collective: all voters; whether, is decided from the exchange and the same on all.
        """
        if refused is not None:
            return Replayed(refused)
        assert passes is not None, "this rank reported that it can"
        passes.bad_ranks = frozenset((*outcome.ranks.bad_before, *outcome.ranks.bad_after_only))
        has_dynamic_scale = self._alarm.has(Flag.DYNAMIC_SCALE)
        return Replayer(passes, is_state_clean, has_dynamic_scale, self._faults, lower_scale).run()

    def _after_replay(self, replayed: Replayed) -> bool:
        """Write this rank's trace, and join the traces when all ranks have: a rank may not survive the arbitration.

        The call for a peer goes first: the peer waits from here on, and the asker may be the rank that joins.

        Returns:
            Whether the trace is on disk, where there is one.
        Collective: all voters, where the step was run again.
        """
        if not replayed.summary.done:
            return True
        has_written = True
        if replayed.trace is not None:
            name = f"{self._incident}/{trace_name(self._guarded.coordinates, self._guarded.sizes)}"
            has_written = (
                self._faults.attempt("trace", lambda: self._files.write(name, replayed.trace), None) is not None
            )
        self._all(True)
        if self._saves_calls:
            rank, calls, roles = self._guarded.coordinates.rank, replayed.calls, replayed.roles
            self._faults.attempt(
                "call for a peer", lambda: send_first(calls, roles, rank, self._files, self._incident), None
            )
        if self._merged is not None:
            merged = self._merged
            self._faults.attempt("joining", lambda: merged.after_replay(replayed.summary), None)
        return has_written

    def _arbitrate(self, replayed: Replayed) -> tuple[Arbitration, ...]:
        """Make the suspect calls again. Local, but for a file that travels to a peer and back within a deadline."""
        guarded, files, seconds, saves = self._guarded, self._files, self._watchdog.deadline, self._saves_calls
        calls, roles = replayed.calls, replayed.roles
        return self._faults.attempt(
            "arbitration", lambda: arbitrate_all(guarded, calls, roles, files, self._incident, seconds, saves), ()
        )

    @property
    def _saves_calls(self) -> bool:
        return self._run.settings.capture in SAVES_CALLS and not self._files.has_failed

    # ---------------------------------------------------------------- files, capture

    def _complete_rank_file(
        self, replayed: Replayed, arbitrations: tuple[Arbitration, ...], decision: PolicyOutcome
    ) -> bool:
        """Write the complete post-mortem of this rank; whether it is on disk."""
        watch, health = self._run.health, None
        if watch is not None:
            health = self._faults.attempt("hardware", lambda: watch.report(self._watchdog.deadline / 4), None)
        return self._rank_file.add(
            "files",
            phase="complete",
            policy=decision.action,
            replay=replayed.summary,
            changed_after_fetch=replayed.changed_after_fetch,
            arbitrations=arbitrations,
            health=health,
        )

    def _sent(self, replayed: Replayed, *, has_written: bool) -> tuple[Evidence, ...]:
        """What ranks send to the one that merges, because it cannot read it all from files; else nothing but its own.

        Args:
            has_written: this rank's evidence is on disk.
        Collective: all voters.
        """
        mine, merged, num_ranks = self._mine(replayed), self._merged, len(self._voters.ranks)
        sees_all = None if merged is None else partial(merged.sees, num_ranks, replayed.trace is not None)
        rank, device = self._guarded.coordinates.rank, self._guarded.torch_device
        return gather(mine, rank, self._voters, device, self._faults, has_written=has_written, sees_all=sees_all)

    def _merge(self, outcome: ExchangeOutcome, decision: PolicyOutcome, sent: tuple[Evidence, ...]) -> None:
        """One rank merges the evidence of all, and logs the sentence about the incident.

        Collective: all voters.
        """
        merged = self._merged
        if merged is not None:
            path = self._faults.attempt("merging", lambda: merged.complete(decision, sent), None)
            where = f" See: nanguard report {path.parent}" if path else ""
            summary = sentence(self._guarded.step.number, outcome, merged.known)
            log.error("non-finite gradient or loss. %s %s%s", summary, decision.words, where)
        self._all(True)

    def _add_faults(self) -> None:
        """Name stages that failed after the files that name them were written."""
        self._rank_file.add_faults()
        merged, notes = self._merged, self._faults.notes()
        if merged is not None and notes:
            rank = self._guarded.coordinates.rank
            self._faults.attempt("note of a fault", lambda: merged.add_fault(rank, notes), None)

    def _first_gradients(self) -> dict[str, str] | None:
        """Digests of the gradients of the first pass, where the step is to be saved: a replay writes over them.

        None where they could not be taken. Then the step is not saved, which is compared by them; nothing else is lost.
        """
        if self._run.settings.capture not in SAVES_STEP:
            return {}
        names = self._guarded.names
        return self._faults.attempt("digests of the gradients", lambda: named_digests(gradients_by_name(names)), None)

    def _capture(self, replayed: Replayed, gradients: dict[str, str] | None, why_no_replay: str) -> None:
        """Save the step, as far as --nanguard-capture asks for it.

        Collective: all voters, where tensors are asked for.
        """
        level = self._run.settings.capture
        if level == "none":
            return
        why_not = why_no_replay or ("" if gradients is not None else "the gradients of this rank could not be digested")
        collector = Collector(self._guarded, self._alarm.optimizer, level, replayed.calls, gradients or {}, why_not)
        Capturer(self._voters, self._files, self._incident, self._watchdog, self._faults).capture(collector)
