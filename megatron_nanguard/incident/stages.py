"""The course of an incident. Every rank enters with the same votes and leaves with the same outcome.

1 signal     evidence of this rank, on disk before anything else can fail
  check      fp16, where the loss scaler may be at work: if it is, the signal is taken back and this is no incident
2 exchange   one record per rank: who was bad before the reduction, who only after it, can all run it again; on disk,
             and merged by one rank
3 audit      what was bad before the step began; on disk
4 replay     the step again in place, traced; this rank's trace on disk, and joined by one rank; everything put back
5 arbitration  the accused calls again, here, on a peer and in higher precision
6 files      the complete post-mortem, then one merged incident with the origin and the verdict
7 capture    the step itself, as far as --nanguard-capture asks for it
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from megatron_nanguard.coordination.vote import all_done, exchange
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident import rank_evidence
from megatron_nanguard.incident.arbitrating import PEER_SECONDS, arbitrate_all, send_first
from megatron_nanguard.incident.auditing import audit_here, with_bad_copies
from megatron_nanguard.incident.capturing import Capturer
from megatron_nanguard.incident.checking import check_scale
from megatron_nanguard.incident.collecting import Collector, first_gradients
from megatron_nanguard.incident.files import MergedFile, sentence
from megatron_nanguard.incident.outcome import ExchangeOutcome, conclude
from megatron_nanguard.incident.passes import Passes
from megatron_nanguard.incident.rank_file import RankFile
from megatron_nanguard.incident.rank_summary import RankSummary
from megatron_nanguard.incident.refusal import refusal, why_no_replay
from megatron_nanguard.incident.replaying import Replayed, Replayer
from megatron_nanguard.incident.setting import Policy, Setting
from megatron_nanguard.incident.signal import Alarm, write_down
from megatron_nanguard.patching import Shield
from megatron_nanguard.policy.scaler import COUNTED_SKIP
from megatron_nanguard.postmortem.run_directory import trace_name
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.replay import ReplaySummary, Trial
from megatron_nanguard.sentinel import Flag
from megatron_nanguard.sentinel.vote_flags import FP32_MAX
from megatron_nanguard.settings import SAVES_CALLS, SAVES_STEP

log = logging.getLogger("megatron_nanguard")

NO_DIGESTS = "the gradients of this rank could not be digested"


def handle(
    subject: GuardedOptimizer, alarm: Alarm, setting: Setting, policy: Policy, *, in_doubt: bool = False
) -> PolicyOutcome:
    """Take an alarm through its stages.

    Args:
        in_doubt: the loss scaler may be at work; if it is, the step is a counted skip.
    Returns:
        What is to be done, the same on every rank.
    Collective: all voters; a rank that fails or is late ends the process on every rank with exit code 65.
    """
    with setting.watchdog:
        decided = _Course(subject, alarm, setting).run(policy, in_doubt)
    if decided is not COUNTED_SKIP and subject.recorder is not None:
        subject.recorder.discard()
    return decided


class _Course:
    """One alarm on its way."""

    def __init__(self, subject: GuardedOptimizer, alarm: Alarm, setting: Setting) -> None:
        self._subject, self._alarm, self._setting = subject, alarm, setting
        self._shield, self._voters = setting.shield, setting.voters
        self._incident = setting.run.incident_path(subject.step)
        self._own = RankFile(setting, self._incident)
        self._merged: MergedFile | None = None

    def run(self, policy: Policy, in_doubt: bool) -> PolicyOutcome:
        """All stages in order."""
        subject, setting = self._subject, self._setting
        self._stage("signal")
        seen = self._signal()
        why_not = why_no_replay(subject)
        passes = None if why_not else self._passes()
        lower: Trial = "not_tried"
        if in_doubt:
            lower = check_scale(subject, self._alarm, setting, self._incident, passes)
            if lower != "bad":
                return COUNTED_SKIP
        setting.counts["incidents"] += 1
        self._look_at_hardware()
        self._stage("exchange")
        outcome = self._exchange(seen, can_replay=not why_not)
        refused = refusal(outcome, why_not, self._shield.fault)
        self._after_exchange(outcome, refused)
        audited = audit_here(subject, self._alarm, setting)
        self._own.add("findings", audited=audited is not None, audit=audited or ())
        decided = policy(with_bad_copies(outcome, audited, subject, setting))
        gradients = self._first_gradients()
        replayed = self._replay(outcome, refused, passes, lower, is_state_clean=audited == ())
        self._after_replay(replayed)
        self._stage("arbitration", PEER_SECONDS)
        arbitrations = self._arbitrate(replayed)
        self._stage("files")
        self._files(outcome, replayed, arbitrations, decided)
        self._capture(replayed, gradients, why_not)
        return decided

    def _stage(self, name: str, longer: float = 0.0) -> None:
        self._setting.watchdog.stage(name, self._setting.deadline + longer)

    def _is_writer(self) -> bool:
        """One rank merges the files of all."""
        return self._subject.coordinates.rank == self._voters.ranks[0]

    def _all_wrote(self) -> None:
        """Collective: all voters."""
        all_done(True, self._voters, self._subject.torch_device)

    # ---------------------------------------------------------------- signal, exchange

    def _signal(self) -> rank_evidence.RankEvidence:
        seen = rank_evidence.NOTHING
        with self._shield("incident, signal"):
            setting, fault = self._setting, self._shield.fault
            seen = rank_evidence.collect(self._subject, FP32_MAX / len(self._voters.ranks))
            self._own.begin(write_down(self._subject, self._alarm, seen, setting.run_id, setting.policy_name, fault))
        return seen

    def _look_at_hardware(self) -> None:
        """Begin, in the background. What cannot be looked at costs its readings, and nothing else."""
        with Shield()("incident, hardware"):
            if self._setting.health is not None:
                self._setting.health.look()

    def _exchange(self, seen: rank_evidence.RankEvidence, *, can_replay: bool) -> ExchangeOutcome:
        """Collective: all voters."""
        subject, own = self._subject, self._own.postmortem
        mine = RankSummary.of(
            subject.coordinates,
            seen,
            is_dead_step=own is not None and own.flags.dead_step,
            has_own_fault=self._shield.fault is not None,
            can_replay=can_replay,
        )
        rows = exchange(mine.to_ints(), self._voters, subject.torch_device)
        return conclude([RankSummary.from_ints(row) for row in rows], subject.sizes)

    def _after_exchange(self, outcome: ExchangeOutcome, refused: ReplaySummary | None) -> None:
        """Write down what the exchange told, before a replay that a rank may not come back from."""
        own = self._own.postmortem
        if own is not None:
            self._own.add(
                "outcome",
                kind=outcome.kind,
                ranks=outcome.ranks,
                groups=outcome.groups,
                infected_groups=outcome.infected_groups,
                replay=refused or own.replay,
                notes=(*own.notes, *outcome.notes),
            )
        with self._shield("incident, first merging"):
            if self._is_writer():
                saves_calls = self._setting.capture in SAVES_CALLS
                self._merged = MergedFile(self._setting.run, self._incident, outcome, saves_calls=saves_calls)
                self._merged.after_exchange()

    # ---------------------------------------------------------------- replay, arbitration

    def _passes(self) -> Passes:
        recorder = self._subject.recorder
        assert recorder is not None and recorder.call is not None
        return Passes(self._subject, recorder.call, self._voters, self._setting.exercise)

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
            lower_scale: what became of the check, if there was one.
            is_state_clean: the audit of this rank found nothing.
        Collective: all voters, decided alike from the exchange.
        """
        if refused is not None:
            return Replayed(refused)
        assert passes is not None, "this rank said that it can"
        return Replayer(
            passes=replace(passes, bad_ranks=frozenset((*outcome.ranks.bad_before, *outcome.ranks.bad_after_only))),
            watchdog=self._setting.watchdog,
            deadline=self._setting.deadline,
            median_step=self._subject.median_seconds,
            is_state_clean=is_state_clean,
            has_dynamic_scale=self._alarm.has(Flag.DYNAMIC_SCALE),
            lower_scale=lower_scale,
        ).run()

    def _after_replay(self, replayed: Replayed) -> None:
        """Write this rank's trace; when all have, they are joined: the arbitration may be the end of a rank.

        The call for a peer goes first: the peer waits from here on, and the asker may be the one that joins.

        Collective: all voters, where the step was run again.
        """
        if not replayed.summary.done:
            return
        with self._shield("incident, trace"):
            if replayed.trace is not None:
                name = trace_name(self._subject.coordinates, self._subject.sizes)
                self._setting.run.write(f"{self._incident}/{name}", replayed.trace)
        self._all_wrote()
        with self._shield("incident, call for a peer"):
            if self._saves_calls:
                send_first(replayed.calls, replayed.roles, self._subject.coordinates.rank, self._directory)
        with self._shield("incident, joining"):
            if self._merged is not None:
                self._merged.after_replay(replayed.summary)

    def _arbitrate(self, replayed: Replayed) -> tuple[Arbitration, ...]:
        """The accused calls again. Local, but for a file that travels to a peer and back within a deadline."""
        setting = self._setting
        with self._shield("incident, arbitration"):
            return arbitrate_all(
                self._subject, replayed.calls, replayed.roles, self._directory, setting.deadline, self._saves_calls
            )
        return ()

    @property
    def _directory(self) -> Path:
        return self._setting.run.path / self._incident

    @property
    def _saves_calls(self) -> bool:
        return self._setting.capture in SAVES_CALLS and not self._setting.run.has_failed

    # ---------------------------------------------------------------- files, capture

    def _files(
        self,
        outcome: ExchangeOutcome,
        replayed: Replayed,
        arbitrations: tuple[Arbitration, ...],
        decided: PolicyOutcome,
    ) -> None:
        """Collective: all voters."""
        health = None
        with Shield()("incident, hardware"):
            if self._setting.health is not None:
                health = self._setting.health.report(self._setting.deadline / 2)
        self._own.add(
            "files",
            phase="complete",
            policy=decided.action,
            replay=replayed.summary,
            changed_after_fetch=replayed.changed_after_fetch,
            arbitrations=arbitrations,
            health=health,
        )
        self._all_wrote()
        with self._shield("incident, merging"):
            if self._merged is not None:
                told, path = self._merged.complete(decided)
                _tell(sentence(self._subject.step, outcome, told), path, decided)
        self._all_wrote()

    def _first_gradients(self) -> dict[str, str] | None:
        """Digests of the gradients of the first pass, where the step is to be saved: a replay writes over them.

        None where they could not be taken, which costs the step that would be compared by them, and nothing else.
        """
        if self._setting.capture not in SAVES_STEP:
            return {}
        with Shield()("incident, digests of the gradients"):
            return first_gradients(self._subject)
        return None

    def _capture(self, replayed: Replayed, gradients: dict[str, str] | None, why_no_replay: str) -> None:
        """Collective: all voters, where tensors are asked for."""
        setting = self._setting
        if setting.capture == "none":
            return
        why_not = why_no_replay or ("" if gradients is not None else NO_DIGESTS)
        collector = Collector(
            self._subject, self._alarm.optimizer, setting.capture, replayed.calls, gradients or {}, why_not
        )
        Capturer(
            voters=setting.voters,
            run=setting.run,
            incident=self._incident,
            watchdog=setting.watchdog,
            deadline=setting.deadline,
            device=self._subject.torch_device,
        ).capture(collector)


def _tell(summary: str, path: Path | None, decided: PolicyOutcome) -> None:
    where = f" See: nanguard report {path.parent}" if path else ""
    log.error("non-finite gradient or loss. %s %s%s", summary, decided.words, where)
