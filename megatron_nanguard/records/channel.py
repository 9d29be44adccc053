"""The ranks of a communication, in a form that stays small when all ranks of a large world take part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from megatron_nanguard.errors import PostmortemError

Run = tuple[int, int, int]
"""(start, stop, step), as `range` has them."""

MOST_RANKS: Final = 1 << 20
"""More than any run has; a file that says otherwise is damaged."""


@dataclass(frozen=True)
class Channel:
    """Ranks between which communications are counted: a group, or one rank sending to another.

    Attributes:
        kind: "group", or "p2p" from the first rank to the second.
        runs: the global ranks in their order, as (start, stop, step) without the stop: `[[0, 8, 2]]` is 0, 2, 4, 6.
    """

    kind: Literal["group", "p2p"]
    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        """Refuse ranks that no training run has."""
        if not all(0 <= start < stop <= MOST_RANKS and step > 0 for start, stop, step in self.runs):
            raise PostmortemError(f"ranks of a channel are {self.runs}, expected (start, stop, step), start below stop")
        if len(self) > MOST_RANKS:
            raise PostmortemError(f"a channel has {len(self)} ranks, expected at most {MOST_RANKS}")
        if self.kind == "p2p" and len(self) != 2:
            raise PostmortemError(f"a channel p2p has {len(self)} ranks, expected 2")

    @classmethod
    def group(cls, ranks: Sequence[int]) -> Channel:
        """All members of a group, in the order of the group."""
        return cls("group", tuple(_runs(ranks)))

    @classmethod
    def p2p(cls, source: int, destination: int) -> Channel:
        """From one rank to another."""
        return cls("p2p", tuple(_runs((source, destination))))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks, in order."""
        return tuple(rank for start, stop, step in self.runs for rank in range(start, stop, step))

    @property
    def senders(self) -> tuple[int, ...]:
        """The ranks that may have sent."""
        return self.ranks[:1] if self.kind == "p2p" else self.ranks

    def __len__(self) -> int:
        """How many ranks."""
        return sum(len(range(*run)) for run in self.runs)


def _runs(ranks: Sequence[int]) -> Iterator[Run]:
    """Cut a sequence into ascending runs of equal steps."""
    if not ranks:
        return
    first = last = ranks[0]
    step = 0
    for rank in ranks[1:]:
        if rank - last == step or (not step and rank > last):
            step, last = rank - last, rank
        else:
            yield first, last + 1, step or 1
            first, last, step = rank, rank, 0
    yield first, last + 1, step or 1
