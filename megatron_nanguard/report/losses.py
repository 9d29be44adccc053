"""The losses of the step by micro-batch."""

from __future__ import annotations

from megatron_nanguard.records.incident import Incident, MicrobatchLosses
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.wording import number, rank_list

SHOWN_MICROBATCHES = 8
COLUMNS = ("micro-batch", "lowest", "highest", "not finite on ranks")


def describe(incident: Incident) -> Block | None:
    """All micro-batches where they are few; else the ones with a loss that is not finite, then the first."""
    if not incident.losses:
        return None
    chosen = sorted(incident.losses, key=lambda losses: not losses.nonfinite_ranks)[:SHOWN_MICROBATCHES]
    left_out = len(incident.losses) - len(chosen)
    return Block(
        "Losses",
        columns=COLUMNS,
        rows=tuple(_row(losses) for losses in sorted(chosen, key=lambda losses: losses.index)),
        notes=(f"... and {left_out} more micro-batches",) if left_out else (),
    )


def _row(losses: MicrobatchLosses) -> tuple[str, ...]:
    return str(losses.index), number(losses.lowest), number(losses.highest), rank_list(losses.nonfinite_ranks)
