"""What was bad before the step began, which is never blamed on an operator."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.outcome import ExchangeOutcome
from megatron_nanguard.incident.setting import Setting
from megatron_nanguard.incident.signal import Alarm
from megatron_nanguard.records.audit import AuditFinding
from megatron_nanguard.replay.audit import OWNED_ELSEWHERE, audit

Audited = tuple[AuditFinding, ...] | None
"""None where it could not be looked at."""


def audit_here(subject: GuardedOptimizer, alarm: Alarm, setting: Setting) -> Audited:
    """Look at weights, main parameters, moments, buffers and the recorded batch of this rank.

    Sync: host reads.
    """
    if subject.recorder is None or subject.recorder.call is None:
        return None
    with setting.shield("incident, audit"):
        batch = subject.recorder.call.recording.batch()
        return audit(subject.chunks, subject.names, alarm.optimizer, batch, subject.coordinates.rank)
    return None


def with_bad_copies(
    outcome: ExchangeOutcome, audited: Audited, subject: GuardedOptimizer, setting: Setting
) -> ExchangeOutcome:
    """Add what the policy must know of the audit, alike on all ranks.

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
