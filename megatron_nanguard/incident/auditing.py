"""The audit: what was bad before the step began, which is never blamed on an operator."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.rank_summary import ExchangeOutcome
from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.replay.audit import OWNED_ELSEWHERE, audit

Audited = tuple[AuditFinding, ...] | None
"""None where nothing was looked at."""


def audit_here(guarded: GuardedOptimizer, alarm: Alarm) -> Audited:
    """Look at weights, main parameters, moments, buffers and the recorded batch of this rank.

    Sync: host reads.
    """
    recorder = guarded.step.recorder
    if recorder is None or recorder.call is None:
        return None
    batch = recorder.call.recording.batch()
    return audit(guarded.chunks, guarded.names, alarm.optimizer, batch, guarded.coordinates.rank)


def with_bad_copies(
    outcome: ExchangeOutcome, audited: Audited, guarded: GuardedOptimizer, alarm: Alarm
) -> ExchangeOutcome:
    """Add what the policy must know of the audit, the same on all ranks.

    Collective: all voters.
    """
    findings = audited or ()
    row = (
        any(finding.kind == "weight_only" for finding in findings),
        any(finding.note == OWNED_ELSEWHERE for finding in findings),
        any(finding.kind == "main_param" for finding in findings),
    )
    rows = exchange(tuple(map(int, row)), alarm.voters, guarded.torch_device)
    here, elsewhere, main = (any(column) for column in zip(*rows, strict=True))
    return replace(outcome, has_bad_copy=here or (elsewhere and not main))
