"""What was bad before the step began."""

from __future__ import annotations

from megatron_nanguard.records.audit import AuditFinding
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections import audit
from tests.unit.report.factories import described, opened_incident

MOMENT = AuditFinding("exp_avg_sq", "decoder.layers.0.w", "negative", 3, "in the shard of this rank")


def test_where_all_was_well_there_is_no_section() -> None:
    assert audit.describe(opened_incident()) is None


def test_a_finding_is_told_with_its_rank() -> None:
    assert audit.describe(opened_incident(audit=(MOMENT,))) == Block(
        "Bad before the step began",
        columns=("what", "name", "seen", "rank", "note"),
        rows=(("exp avg sq", "decoder.layers.0.w", "negative", "3", "in the shard of this rank"),),
    )


def test_many_findings_are_counted() -> None:
    block = described(audit.describe, opened_incident(audit=(MOMENT,) * 20))

    assert len(block.rows) == 12
    assert block.notes == ("... and 8 more",)
