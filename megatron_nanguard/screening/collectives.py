"""Every collective over one parallel group, with a table that each member knows: row i is what member i gives.

The rows are whole numbers, so a sum over members has one right value in whatever order a backend adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_nanguard.records.screening import CollectiveCheck
from megatron_nanguard.screening.attempt import attempt
from megatron_nanguard.screening.known_data import integers
from megatron_nanguard.screening.layout import Group

NUMEL = 1 << 16
"""Elements that a member gives, about: a multiple of the members."""
LARGEST = 1024
"""Sums stay exact in float32 (2**24) up to 16384 members."""
REPEATS = 3
"""The first call makes the connections; the fastest is told."""

# Their names since torch 2.14, which warns of the old ones.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_blocks = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Seat:
    """One member's part in a group.

    Attributes:
        group: its axis and members.
        handle: of torch.
        index: this member's.
        table: float32 [members, elements] in host memory, a multiple of the members long.
        device: that holds the data.
    """

    group: Group
    handle: dist.ProcessGroup
    index: int
    table: Tensor
    device: torch.device

    @classmethod
    def take(cls, group: Group, handle: dist.ProcessGroup, rank: int, device: torch.device) -> Seat:
        """Make the table of a group."""
        members = len(group.ranks)
        table = integers((members, max(1, NUMEL // members) * members), LARGEST, "collective", group.ranks)
        return cls(group, handle, group.ranks.index(rank), table, device)

    @property
    def mine(self) -> Tensor:
        """What this member gives, on the device; a copy, since a collective in place writes over it."""
        return self.table[self.index].to(self.device, copy=True)

    def empty(self, numel: int) -> Tensor:
        """Room for what comes, filled with what no sum gives."""
        return torch.full((numel,), torch.nan, device=self.device)


@dataclass(frozen=True)
class Prepared:
    """One call, ready to be made.

    Attributes:
        start: makes it.
        output: holds the result afterwards.
        expected: the same in host memory.
        sources: members whose contribution stands in each of the equal parts of the output; empty for sums.
    """

    start: Callable[[], dist.Work | None]
    output: Tensor
    expected: Tensor
    sources: tuple[int, ...]


def _all_reduce(seat: Seat) -> Prepared:
    output = seat.mine
    start = lambda: dist.all_reduce(output, group=seat.handle, async_op=True)  # noqa: E731
    return Prepared(start, output, seat.table.sum(0), ())


def _all_gather(seat: Seat) -> Prepared:
    mine, output = seat.mine, seat.empty(seat.table.numel())
    start = lambda: _gather(output, mine, group=seat.handle, async_op=True)  # noqa: E731
    return Prepared(start, output, seat.table.flatten(), seat.group.ranks)


def _reduce_scatter(seat: Seat) -> Prepared:
    members = len(seat.group.ranks)
    mine, output = seat.mine, seat.empty(seat.table.shape[1] // members)
    start = lambda: _reduce_scatter_blocks(output, mine, group=seat.handle, async_op=True)  # noqa: E731
    return Prepared(start, output, seat.table.sum(0).chunk(members)[seat.index], ())


def _all_to_all(seat: Seat) -> Prepared:
    mine, output = seat.mine, seat.empty(seat.table.shape[1])
    start = lambda: dist.all_to_all_single(output, mine, group=seat.handle, async_op=True)  # noqa: E731
    blocks = seat.table.view(len(seat.group.ranks), len(seat.group.ranks), -1)
    return Prepared(start, output, blocks[:, seat.index].flatten(), seat.group.ranks)


def _broadcast(seat: Seat) -> Prepared:
    source = seat.group.ranks[0]
    output = seat.mine if seat.index == 0 else seat.empty(seat.table.shape[1])
    start = lambda: dist.broadcast(output, source, group=seat.handle, async_op=True)  # noqa: E731
    return Prepared(start, output, seat.table[0], (source,))


OPERATIONS: dict[str, Callable[[Seat], Prepared]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}


def try_collectives(seat: Seat, seconds: float) -> Iterator[CollectiveCheck]:
    """Each operation in turn; the first that does not end is the last.

    Args:
        seat: this member's part.
        seconds: longest wait for one call.
    Collective: the group of the seat.
    """
    for name, prepare in OPERATIONS.items():
        check = _try(seat, name, prepare, seconds)
        yield check
        if check.result in ("late", "failed"):
            return


def _try(seat: Seat, name: str, prepare: Callable[[Seat], Prepared], seconds: float) -> CollectiveCheck:
    wrong: set[int] = set()
    is_wrong = False
    fastest = seconds
    for _ in range(REPEATS):
        call = prepare(seat)
        tried = attempt(call.start, dist.get_backend(seat.handle), seconds)
        if tried.result != "right":
            return CollectiveCheck(*seat.group, name, tried.result, (), tried.seconds, tried.words)
        fastest = min(fastest, tried.seconds)
        output = call.output.cpu()
        is_wrong |= not torch.equal(output, call.expected)
        wrong.update(_wrong_sources(output, call))
    return CollectiveCheck(*seat.group, name, "wrong" if is_wrong else "right", tuple(sorted(wrong)), fastest)


def _wrong_sources(output: Tensor, call: Prepared) -> list[int]:
    if not call.sources:
        return []
    parts = zip(call.sources, output.chunk(len(call.sources)), call.expected.chunk(len(call.sources)), strict=True)
    return [source for source, part, expected in parts if not torch.equal(part, expected)]
