"""Origins, and what was bad before the step began."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.records.trace import OriginKind, TensorFacts
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections import origins
from tests.unit.diagnosis.factories import NAN, origin
from tests.unit.report.factories import demo_rows, described, opened_incident


def test_without_an_origin_there_is_no_section() -> None:
    assert origins.describe(opened_incident()) is None


def test_everything_that_is_known_about_an_origin_is_shown() -> None:
    known = origin(
        operator="FusedAttentionBackward",
        forward_operator="FusedAttention",
        facts=replace(NAN, name="grad of k", layout="head 2 (dim 1)"),
        positions=((3,), (0, 1)),
        function_line="attention.py:3 in FusedAttention.backward",
        inputs=(
            TensorFacts("q", (4,), "bfloat16", "finite", absmax=2.0, lowest=-2.0, highest=0.5),
            TensorFacts("value", (), "number", "nan"),
        ),
        times=3,
    )

    assert origins.describe(opened_incident(rows=demo_rows(), origin=(known,))) == Block(
        "Origin",
        rows=(
            ("rank", "5, tp1pp1dp0"),
            ("device", "Test CPU on host node1"),
            ("micro-batch", "2"),
            ("phase", "backward"),
            ("module", "decoder.layers.3.mlp"),
            ("operator", "FusedAttentionBackward -> NaN"),
            ("in the backward of", "FusedAttention"),
            ("written at", "attention.py:3 in FusedAttention.backward"),
            ("forward line", "model.py:7 in f"),
            ("came in", "q, (4,) bfloat16: finite from -2 to 0.5"),
            ("came in", "value, a plain number: NaN"),
            ("went out", "grad of k, (4, 8) bfloat16: 3 NaN, 0 Inf, finite up to 1.5 in magnitude, head 2 (dim 1)"),
            ("at", "(3) (0, 1)"),
            ("times", "3"),
        ),
    )


def test_the_line_of_a_python_backward_is_not_labelled_as_forward_line() -> None:
    own = origin(source_line="faults.py:78 in LogOfNegative.backward")
    labels = [label for label, _ in described(origins.describe, opened_incident(origin=(own,))).rows]

    assert "line" in labels
    assert "forward line" not in labels


def test_inputs_that_were_not_recorded_are_shown_as_such() -> None:
    assert ("came in", "not recorded") in described(origins.describe, opened_incident(origin=(origin(inputs=()),))).rows


def test_an_output_without_a_name_is_labelled_by_its_number() -> None:
    unnamed = origin(facts=replace(NAN, name="0"))
    assert dict(described(origins.describe, opened_incident(origin=(unnamed,))).rows)["went out"].startswith(
        "output 0, (4, 8)"
    )


def test_a_scalar_has_no_position() -> None:
    labels = [
        label for label, _ in described(origins.describe, opened_incident(origin=(origin(positions=((),)),))).rows
    ]

    assert "at" not in labels


def test_several_origins_are_numbered_and_cut() -> None:
    block = described(
        origins.describe, opened_incident(origin=tuple(origin(rank=rank, facts=None) for rank in range(5)))
    )

    assert block.title == "Origin: 5 that do not depend on each other, earliest first"
    assert [row for row in block.rows if row[0].startswith("rank")] == [
        ("rank (1)", "0, tp1pp1dp0"),
        ("rank (2)", "1, tp1pp1dp0"),
        ("rank (3)", "2, tp1pp1dp0"),
    ]
    assert block.notes == ("... and 2 more origins",)


def test_a_collective_is_shown_with_all_its_members() -> None:
    spoiled = origin(
        kind=OriginKind.COMMUNICATION,
        operator="allreduce_",
        output="no. 4 of tensor-parallel group of pp1 dp0, ranks 4, 5",
        pattern="inf",
        positions=(),
        facts=None,
        inputs=(),
        forward_operator=None,
        source_line=None,
        module="",
        ranks=(4, 5),
    )

    assert described(origins.describe, opened_incident(origin=(spoiled,))).rows == (
        ("ranks", "4, 5"),
        ("micro-batch", "2"),
        ("phase", "backward"),
        ("communication", "no. 4 of tensor-parallel group of pp1 dp0, ranks 4, 5"),
        ("operator", "allreduce_ -> Inf"),
        ("came in", "not recorded"),
    )


MOMENT = AuditFinding("exp_avg_sq", "decoder.layers.0.w", "negative", 3, "in the shard of this rank")


def test_an_audit_that_found_nothing_has_no_section() -> None:
    assert origins.describe_audit(opened_incident()) is None


def test_an_audit_finding_is_shown_with_its_rank() -> None:
    assert origins.describe_audit(opened_incident(audit=(MOMENT,))) == Block(
        "Bad before the step began",
        columns=("what", "name", "seen", "rank", "note"),
        rows=(("exp avg sq", "decoder.layers.0.w", "negative", "3", "in the shard of this rank"),),
    )


def test_many_findings_are_counted() -> None:
    block = described(origins.describe_audit, opened_incident(audit=(MOMENT,) * 20))

    assert len(block.rows) == 12
    assert block.notes == ("... and 8 more",)
