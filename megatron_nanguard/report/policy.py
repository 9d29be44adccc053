"""What was done about it."""

from __future__ import annotations

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block


def describe(incident: Incident) -> Block:
    """The policy in one sentence, and the exit code where there was one."""
    policy = incident.policy
    rows = [("policy", policy.name)]
    if policy.action != policy.name:
        rows.append(("done instead", policy.action))
    if policy.exit_code is not None:
        rows.append(("exit code", str(policy.exit_code)))
    return Block("What was done", text=(policy.words,), rows=tuple(rows))
