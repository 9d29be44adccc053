"""The stages of an incident, in order. Every rank enters with the same votes and leaves with the same decision.

1 signal     evidence of this rank, on disk before anything else can fail
  check      fp16, where the loss scaler may be at work: if it is, the signal is taken back and this is no incident
2 exchange   one record per rank: who was bad before the reduction, who only after it, can all run it again; on disk,
             and merged by one rank
3 audit      what was bad before the step began; on disk
4 replay     the step again in place, traced; this rank's trace on disk, and joined by one rank; everything put back
5 arbitration  the suspect calls again, here, on a peer and in higher precision
6 files      the complete post-mortem, then one merged incident with the origin and the verdict
7 capture    the step itself, as far as --nanguard-capture asks for it
"""

from __future__ import annotations

import logging
from pathlib import Path

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
from megatron_nanguard.incident.rank_file import RankFile, first_postmortem
from megatron_nanguard.incident.rank_summary import ExchangeOutcome, RankSummary, conclude
from megatron_nanguard.incident.replaying.passes import Passes
from megatron_nanguard.incident.replaying.replayer import Replayed, Replayer
from megatron_nanguard.incident.replaying.scale_check import check_scale
from megatron_nanguard.incident.replaying.why_not import refusal, why_no_replay
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.policy.deciding import decide
from megatron_nanguard.policy.scaler import COUNTED_SKIP
from megatron_nanguard.postmortem.run_directory import trace_name
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.step.replay import ReplaySummary, Trial
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.sentinel.vote_flags import FP32_MAX, Flag
from megatron_nanguard.settings import SAVES_CALLS, SAVES_STEP

log = logging.getLogger("megatron_nanguard")


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
    )
    with watchdog:
        decision = _Stages(run, guarded, alarm, watchdog).all(in_doubt=in_doubt)
    if decision is not COUNTED_SKIP and guarded.step.recorder is not None:
        guarded.step.recorder.discard()
    return decision


class _Stages:
    """One incident: its files, and what a stage hands to later ones."""

    def __init__(self, run: GuardedRun, guarded: GuardedOptimizer, alarm: Alarm, watchdog: Watchdog) -> None:
        self._run, self._guarded, self._alarm, self._watchdog = run, guarded, alarm, watchdog
        self._voters, self._shield = alarm.voters, run.shield
        self._incident = run.directory.incident_path(guarded.step.number)
        self._rank_file = RankFile(run.directory, self._incident, run.shield)
        self._merged: MergedFile | None = None

    def all(self, *, in_doubt: bool) -> PolicyOutcome:
        """All stages in order."""
        run, guarded, alarm, watchdog = self._run, self._guarded, self._alarm, self._watchdog
        watchdog.stage("signal")
        evidence = self._signal()
        why_not = why_no_replay(guarded)
        passes = None if why_not else self._passes()
        lower_scale: Trial = "not_tried"
        if in_doubt:
            lower_scale = check_scale(run, guarded, alarm, self._incident, watchdog, passes)
            if lower_scale != "bad":
                return COUNTED_SKIP
        run.counts["incidents"] += 1
        self._look_at_hardware()
        watchdog.stage("exchange")
        outcome = self._exchange(evidence, can_replay=not why_not)
        refused = refusal(outcome, why_not, self._shield.fault)
        self._after_exchange(outcome, refused)
        audited = audit_here(guarded, alarm, self._shield)
        self._rank_file.add("findings", audited=audited is not None, audit=audited or ())
        outcome = with_bad_copies(outcome, audited, guarded, alarm)
        decision = decide(run.policy, guarded.step.number, guarded.budget, has_bad_copy=outcome.has_bad_copy)
        gradients = self._first_gradients()
        replayed = self._replay(outcome, refused, passes, lower_scale, is_state_clean=audited == ())
        self._after_replay(replayed)
        watchdog.stage("arbitration", seconds=PEER_SECONDS)
        arbitrations = self._arbitrate(replayed)
        watchdog.stage("files")
        self._files(outcome, replayed, arbitrations, decision)
        self._capture(replayed, gradients, why_not)
        return decision

    def _all_wrote(self) -> None:
        """Return when all ranks have written their files.

        Collective: all voters.
        """
        all_done(True, self._voters, self._guarded.torch_device)

    # ---------------------------------------------------------------- signal, exchange

    def _signal(self) -> rank_evidence.RankEvidence:
        """Collect the evidence of this rank and write its first post-mortem."""
        evidence = rank_evidence.NOTHING
        with self._shield("incident, signal"):
            run, fault = self._run, self._shield.fault
            evidence = rank_evidence.collect(self._guarded, FP32_MAX / len(self._voters.ranks))
            self._rank_file.begin(first_postmortem(self._guarded, self._alarm, evidence, run.run_id, run.policy, fault))
        return evidence

    def _look_at_hardware(self) -> None:
        """Start to read the hardware in the background. A fault here costs the readings, and nothing else."""
        with Shield()("incident, hardware"):
            if self._run.health is not None:
                self._run.health.poll()

    def _exchange(self, evidence: rank_evidence.RankEvidence, *, can_replay: bool) -> ExchangeOutcome:
        """Exchange one row per rank, and conclude the same from them on all.

        Collective: all voters.
        """
        has_fault = self._shield.fault is not None
        mine = RankSummary(self._guarded.coordinates, evidence.signs, has_fault, can_replay)
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
        with self._shield("incident, first merging"):
            if self._guarded.coordinates.rank == self._voters.ranks[0]:
                saves_calls = self._run.settings.capture in SAVES_CALLS
                self._merged = MergedFile(self._run.directory, self._incident, outcome, saves_calls=saves_calls)
                self._merged.after_exchange()

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
        return Replayer(passes, is_state_clean, has_dynamic_scale, lower_scale).run()

    def _after_replay(self, replayed: Replayed) -> None:
        """Write this rank's trace, and join the traces when all ranks have: a rank may not survive the arbitration.

        The call for a peer goes first: the peer waits from here on, and the asker may be the rank that joins.

        Collective: all voters, where the step was run again.
        """
        if not replayed.summary.done:
            return
        with self._shield("incident, trace"):
            if replayed.trace is not None:
                name = trace_name(self._guarded.coordinates, self._guarded.sizes)
                self._run.directory.write(f"{self._incident}/{name}", replayed.trace)
        self._all_wrote()
        with self._shield("incident, call for a peer"):
            if self._saves_calls:
                send_first(replayed.calls, replayed.roles, self._guarded.coordinates.rank, self._directory)
        with self._shield("incident, joining"):
            if self._merged is not None:
                self._merged.after_replay(replayed.summary)

    def _arbitrate(self, replayed: Replayed) -> tuple[Arbitration, ...]:
        """Make the suspect calls again. Local, but for a file that travels to a peer and back within a deadline."""
        with self._shield("incident, arbitration"):
            return arbitrate_all(
                self._guarded,
                replayed.calls,
                replayed.roles,
                self._directory,
                self._watchdog.deadline,
                self._saves_calls,
            )
        return ()

    @property
    def _directory(self) -> Path:
        return self._run.directory.path / self._incident

    @property
    def _saves_calls(self) -> bool:
        return self._run.settings.capture in SAVES_CALLS and not self._run.directory.has_failed

    # ---------------------------------------------------------------- files, capture

    def _files(
        self,
        outcome: ExchangeOutcome,
        replayed: Replayed,
        arbitrations: tuple[Arbitration, ...],
        decision: PolicyOutcome,
    ) -> None:
        """Write the complete post-mortem; one rank merges those of all, and logs the sentence about the incident.

        Collective: all voters.
        """
        health = None
        with Shield()("incident, hardware"):
            if self._run.health is not None:
                health = self._run.health.report(self._watchdog.deadline / 2)
        self._rank_file.add(
            "files",
            phase="complete",
            policy=decision.action,
            replay=replayed.summary,
            changed_after_fetch=replayed.changed_after_fetch,
            arbitrations=arbitrations,
            health=health,
        )
        self._all_wrote()
        with self._shield("incident, merging"):
            if self._merged is not None:
                incident, path = self._merged.complete(decision)
                where = f" See: nanguard report {path.parent}" if path else ""
                summary = sentence(self._guarded.step.number, outcome, incident)
                log.error("non-finite gradient or loss. %s %s%s", summary, decision.words, where)
        self._all_wrote()

    def _first_gradients(self) -> dict[str, str] | None:
        """Digests of the gradients of the first pass, where the step is to be saved: a replay writes over them.

        None where they could not be taken. Then the step is not saved, which is compared by them; nothing else is lost.
        """
        if self._run.settings.capture not in SAVES_STEP:
            return {}
        with Shield()("incident, digests of the gradients"):
            return named_digests(gradients_by_name(self._guarded.names))
        return None

    def _capture(self, replayed: Replayed, gradients: dict[str, str] | None, why_no_replay: str) -> None:
        """Save the step, as far as --nanguard-capture asks for it.

        Collective: all voters, where tensors are asked for.
        """
        level = self._run.settings.capture
        if level == "none":
            return
        why_not = why_no_replay or ("" if gradients is not None else "the gradients of this rank could not be digested")
        collector = Collector(self._guarded, self._alarm.optimizer, level, replayed.calls, gradients or {}, why_not)
        Capturer(self._voters, self._run.directory, self._incident, self._watchdog).capture(collector)
