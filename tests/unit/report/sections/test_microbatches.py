"""The micro-batches of the step."""

from __future__ import annotations

from megatron_nanguard.records.incident import BatchSpot, MicrobatchLosses
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections import microbatches
from tests.unit.diagnosis.factories import origin
from tests.unit.report.factories import described, opened_incident


def test_without_losses_and_origin_there_is_no_section() -> None:
    assert microbatches.describe(opened_incident()) is None


def test_each_micro_batch_says_what_is_unusual() -> None:
    losses = (MicrobatchLosses(1, 4, 10.25, 10.5, ()), MicrobatchLosses(2, 4, None, None, (4, 5)))
    opened = opened_incident(
        losses=losses,
        origin=(origin(phase="forward"), origin(rank=1), origin(rank=2)),
        zero_tokens=(BatchSpot(5, 2), BatchSpot(4, 2)),
        changed_after_fetch=(BatchSpot(7, 3),),
    )

    assert microbatches.describe(opened) == Block(
        "Micro-batches and their losses",
        columns=("micro-batch", "lowest", "highest", "what is unusual"),
        rows=(
            ("1", "10.25", "10.5", ""),
            (
                "2",
                "-",
                "-",
                "it began here, in forward and backward, loss not finite on ranks 4, 5, "
                "no token counted by the loss on ranks 4, 5",
            ),
            ("3", "-", "-", "data changed after it was fetched on rank 7"),
        ),
    )


def test_an_unusual_micro_batch_is_shown_however_late() -> None:
    many = tuple(MicrobatchLosses(index, 2, 1.0, 2.0, (4,) if index == 30 else ()) for index in range(40))

    block = described(microbatches.describe, opened_incident(losses=many))

    assert [row[0] for row in block.rows] == ["0", "1", "2", "3", "4", "5", "6", "30"]
    assert block.rows[-1] == ("30", "1", "2", "loss not finite on rank 4")
    assert block.notes == ("... and 32 more micro-batches",)
