"""The neutral form between what is said and how it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """One section, ready to be laid out.

    Attributes:
        title: its heading.
        text: sentences that come first.
        columns: names of the columns; empty for rows without a head.
        rows: cells, all rows equally many.
        notes: lines after the rows.
    """

    title: str
    text: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
