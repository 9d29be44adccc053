"""The course of an incident. Every rank enters with the same votes and leaves with the same outcome.

1 signal     evidence of this rank, on disk before anything else can fail
2 exchange   one record per rank: who was bad before the reduction, who only after it, can all run it again; on disk
3 audit      what was bad before the step began
4 replay     the step again in place, traced; this rank's trace on disk; everything put back
5 arbitration  the accused calls again, here, on a peer and in higher precision
6 files      the complete post-mortem, then one merged incident with the origin and the verdict
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_nanguard.coordination.electorate import Voters
from megatron_nanguard.coordination.vote import all_done, exchange
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.incident import evidence as evidence_stage
from megatron_nanguard.incident.arbitrating import PEER_SECONDS, arbitrate_all
from megatron_nanguard.incident.evidence import Evidence
from megatron_nanguard.incident.files import merge_files, sentence
from megatron_nanguard.incident.outcome import Outcome, conclude
from megatron_nanguard.incident.passes import Exercise, Passes
from megatron_nanguard.incident.replaying import Replayed, Replayer
from megatron_nanguard.incident.report import RankReport
from megatron_nanguard.incident.signal import Alarm, write_down
from megatron_nanguard.incident.subject import Subject
from megatron_nanguard.patching import Shield
from megatron_nanguard.postmortem.directory import RunDirectory, trace_name
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.audit import AuditFinding
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.postmortem import Kind, Postmortem
from megatron_nanguard.records.replay import ReplaySummary
from megatron_nanguard.replay.audit import OWNED_ELSEWHERE, audit
from megatron_nanguard.sentinel import Flag
from megatron_nanguard.sentinel.flags import FP32_MAX

log = logging.getLogger("megatron_nanguard")

Policy = Callable[[Outcome], PolicyOutcome]
"""Decides from what all ranks know alike."""


@dataclass(frozen=True)
class Setting:
    """Where the incident takes place.

    Attributes:
        deadline: seconds per stage.
        policy_name: as the user asked.
    """

    voters: Voters
    run: RunDirectory
    run_id: str
    deadline: float
    policy_name: str
    shield: Shield
    watchdog: Watchdog
    exercise: Exercise
    saves_calls: bool


def handle(subject: Subject, alarm: Alarm, setting: Setting, policy: Policy) -> PolicyOutcome:
    """Take an alarm through its stages.

    Returns:
        What is to be done, the same on every rank.
    Collective: all voters; a rank that fails or is late ends the process on every rank with exit code 65.
    """
    with setting.watchdog as watchdog:
        watchdog.stage("signal", setting.deadline)
        incident = setting.run.incident_path(subject.step)
        seen, postmortem = _signal(subject, alarm, setting, incident)
        watchdog.stage("exchange", setting.deadline)
        why_not = _why_no_replay(subject)
        outcome = _exchange(subject, seen, postmortem, setting, why_not)
        postmortem = _with_outcome(postmortem, outcome, setting, incident)
        audited = _audit(subject, setting, alarm)
        decided = policy(_with_audit(outcome, audited, subject, setting))
        replayed = _replay(subject, setting, outcome, why_not, alarm, is_state_clean=audited == ())
        with setting.shield("incident, trace"):
            if replayed.trace is not None:
                setting.run.write(f"{incident}/{trace_name(subject.coordinates, subject.sizes)}", replayed.trace)
        watchdog.stage("arbitration", setting.deadline + PEER_SECONDS)
        arbitrations = _arbitrate(subject, setting, incident, replayed)
        watchdog.stage("files", setting.deadline)
        _files(subject, setting, incident, postmortem, outcome, audited, replayed, arbitrations, decided)
    if subject.recorder is not None:
        subject.recorder.discard()
    return decided


def _signal(subject: Subject, alarm: Alarm, setting: Setting, incident: str) -> tuple[Evidence, Postmortem | None]:
    seen, postmortem = evidence_stage.NOTHING, None
    with setting.shield("incident, signal"):
        seen = evidence_stage.collect(subject, FP32_MAX / len(setting.voters.ranks))
        fault = setting.shield.fault
        postmortem = write_down(subject, alarm, seen, setting.run_id, setting.policy_name, fault)
        setting.run.write_postmortem(incident, postmortem)
    return seen, postmortem


def _exchange(
    subject: Subject, seen: Evidence, postmortem: Postmortem | None, setting: Setting, why_not: str
) -> Outcome:
    place = subject.coordinates
    mine = RankReport(
        rank=place.rank,
        tp=place.tp,
        cp=place.cp,
        ep=place.ep,
        dp=place.dp,
        pp=place.pp,
        expert_tp=place.expert_tp,
        expert_dp=place.expert_dp,
        bad_before=int(seen.bad_before),
        bad_after=int(seen.bad_after),
        bad_loss=int(seen.bad_loss),
        suspicious_before=int(seen.suspicious_before),
        suspicious_after=int(seen.suspicious_after),
        dead_step=int(postmortem is not None and postmortem.flags.dead_step),
        own_fault=int(setting.shield.fault is not None),
        can_replay=int(not why_not),
    )
    rows = exchange(mine.to_ints(), setting.voters, subject.torch_device)
    return conclude([RankReport.from_ints(row) for row in rows], subject.sizes)


def _with_outcome(
    postmortem: Postmortem | None, outcome: Outcome, setting: Setting, incident: str
) -> Postmortem | None:
    """Write down what the exchange told, before a replay that a rank may not come back from."""
    if postmortem is not None:
        with setting.shield("incident, outcome"):
            postmortem = replace(
                postmortem,
                kind=outcome.kind,
                ranks=outcome.ranks,
                groups=outcome.groups,
                infected_groups=outcome.infected_groups,
                notes=(*postmortem.notes, *outcome.notes),
            )
            setting.run.write_postmortem(incident, postmortem)
    return postmortem


def _why_no_replay(subject: Subject) -> str:
    """Why the step cannot be run again on this rank; empty when it can."""
    if subject.recorder is None:
        return subject.why_no_recorder
    if subject.recorder.call is None:
        return "the schedule's call was not seen"
    return subject.recorder.call.can_replay()[1]


def _audit(subject: Subject, setting: Setting, alarm: Alarm) -> tuple[AuditFinding, ...] | None:
    """What was bad before the step began is never blamed on an operator. None where it could not be looked at."""
    if subject.recorder is None or subject.recorder.call is None:
        return None
    with setting.shield("incident, audit"):
        batch = subject.recorder.call.recording.batch()
        return audit(subject.chunks, subject.names, alarm.optimizer, batch, subject.coordinates.rank)
    return None


def _with_audit(
    outcome: Outcome, audited: tuple[AuditFinding, ...] | None, subject: Subject, setting: Setting
) -> Outcome:
    """What the policy must know of the audit, alike on all ranks.

    Collective: all voters.
    """
    findings = audited or ()
    row = (
        any(finding.kind == "weight_only" for finding in findings),
        any(finding.note == OWNED_ELSEWHERE for finding in findings),
        any(finding.kind == "main_param" for finding in findings),
    )
    rows = exchange(tuple(map(int, row)), setting.voters, subject.torch_device)
    here, elsewhere, main = (any(column) for column in zip(*rows, strict=True))
    return replace(outcome, has_bad_copy=here or (elsewhere and not main))


def _replay(
    subject: Subject, setting: Setting, outcome: Outcome, why_not: str, alarm: Alarm, *, is_state_clean: bool
) -> Replayed:
    """Run the step again if all ranks can and there is something to look for.

    Args:
        is_state_clean: the audit of this rank found nothing.
    Collective: all voters, decided alike from the exchange.
    """
    if outcome.kind is Kind.DEAD_STEP:
        return Replayed(ReplaySummary(why_not="the step that went bad is the one before; its data is gone"))
    if outcome.kind is Kind.NORM_OVERFLOW:
        return Replayed(ReplaySummary(why_not="every element is finite: there is no operator to look for"))
    if not outcome.all_can_replay:
        return Replayed(ReplaySummary(why_not=why_not or _cannot(outcome.cannot_replay)))
    assert subject.recorder is not None and subject.recorder.call is not None
    passes = Passes(
        subject=subject,
        call=subject.recorder.call,
        voters=setting.voters,
        exercise=setting.exercise,
        bad_ranks=frozenset((*outcome.ranks.bad_before, *outcome.ranks.bad_after_only)),
    )
    return Replayer(
        passes=passes,
        watchdog=setting.watchdog,
        deadline=setting.deadline,
        median_step=subject.median_seconds,
        is_state_clean=is_state_clean,
        has_dynamic_scale=alarm.has(Flag.DYNAMIC_SCALE),
    ).run()


def _arbitrate(subject: Subject, setting: Setting, incident: str, replayed: Replayed) -> tuple[Arbitration, ...]:
    """The accused calls again. Local, but for a file that travels to a peer and back within a deadline."""
    with setting.shield("incident, arbitration"):
        directory = setting.run.path / incident
        saves = setting.saves_calls and not setting.run.has_failed
        return arbitrate_all(subject, replayed.calls, replayed.roles, directory, setting.deadline, saves)
    return ()


def _cannot(ranks: Sequence[int]) -> str:
    others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]}{others} cannot run the step again, see the post-mortem there"


def _files(
    subject: Subject,
    setting: Setting,
    incident: str,
    postmortem: Postmortem | None,
    outcome: Outcome,
    audited: tuple[AuditFinding, ...] | None,
    replayed: Replayed,
    arbitrations: tuple[Arbitration, ...],
    decided: PolicyOutcome,
) -> None:
    with setting.shield("incident, files"):
        if postmortem is not None:
            complete = replace(
                postmortem,
                phase="complete",
                policy=decided.action,
                replay=replayed.summary,
                audited=audited is not None,
                audit=audited or (),
                changed_after_fetch=replayed.changed_after_fetch,
                arbitrations=arbitrations,
            )
            setting.run.write_postmortem(incident, complete)
    all_done(True, setting.voters, subject.torch_device)
    if subject.coordinates.rank == setting.voters.ranks[0]:
        with setting.shield("incident, merging"):
            merged, path = merge_files(setting.run, incident, outcome, decided)
            _tell(sentence(subject.step, outcome, merged), path, decided)
    all_done(True, setting.voters, subject.torch_device)


def _tell(summary: str, path: Path | None, decided: PolicyOutcome) -> None:
    where = f" See: nanguard report {path.parent}" if path else ""
    log.error("non-finite gradient or loss. %s %s%s", summary, decided.words, where)
