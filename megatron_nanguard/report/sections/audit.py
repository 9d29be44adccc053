"""What was bad before the step began, and so cannot be any operator's fault."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_FINDINGS: Final = 12
COLUMNS: Final = (phrase("what"), phrase("name"), phrase("seen"), phrase("rank"), phrase("note"))


def describe(opened: OpenedIncident) -> Block | None:
    """The findings of the audit; nothing where all was well or nothing was looked at."""
    findings = opened.incident.audit
    if not findings:
        return None
    more = len(findings) - SHOWN_FINDINGS
    return Block(
        phrase("Bad before the step began"),
        columns=COLUMNS,
        rows=tuple(
            (one.kind.replace("_", " "), one.name, one.pattern, str(one.rank), one.note)
            for one in findings[:SHOWN_FINDINGS]
        ),
        notes=(phrase("... and {more} more", more=more),) if more > 0 else (),
    )
