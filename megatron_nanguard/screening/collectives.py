"""Tests every collective of one parallel group, with a table that all members know: member i contributes row i.

The rows are whole numbers, so a sum over members is exact in any order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_nanguard.records.machine.screening import CollectiveCheck
from megatron_nanguard.screening.known_data import integers
from megatron_nanguard.screening.parallel_groups import Group
from megatron_nanguard.screening.timed_operation import run_timed

NUMEL = 1 << 16
"""Elements of each member, rounded down to a multiple of the members."""
LARGEST = 1024
"""Sums stay exact in float32 (2**24) up to 16384 members."""
REPEATS = 3
"""The first call makes the connections; the fastest call is reported."""

# Names since torch 2.14, which deprecates the old ones.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_blocks = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class GroupMember:
    """This rank as a member of a group.

    Attributes:
        group: its axis and ranks.
        handle: process group of torch.
        index: of this rank in the group.
        table: float32 [members, elements] in host memory; elements are a multiple of members.
        device: holds the data.
    """

    group: Group
    handle: dist.ProcessGroup
    index: int
    table: Tensor
    device: torch.device

    @classmethod
    def of(cls, group: Group, handle: dist.ProcessGroup, rank: int, device: torch.device) -> GroupMember:
        """Make the table of a group."""
        members = len(group.ranks)
        table = integers((members, max(1, NUMEL // members) * members), LARGEST, "collective", group.ranks)
        return cls(group, handle, group.ranks.index(rank), table, device)

    @property
    def contribution(self) -> Tensor:
        """Row of this member on the device; a copy, since a collective in place overwrites it."""
        return self.table[self.index].to(self.device, copy=True)

    def empty(self, numel: int) -> Tensor:
        """Buffer for the output, filled with NaN, which no collective here produces."""
        return torch.full((numel,), torch.nan, device=self.device)


@dataclass(frozen=True)
class PreparedCall:
    """One collective, ready to start.

    Attributes:
        start: starts it.
        output: on the device, holds the result afterwards.
        expected: the right result in host memory.
        sources: rank that each of the equal parts of the output comes from; empty for sums.
    """

    start: Callable[[], dist.Work | None]
    output: Tensor
    expected: Tensor
    sources: tuple[int, ...]


def _all_reduce(member: GroupMember) -> PreparedCall:
    output = member.contribution
    start = lambda: dist.all_reduce(output, group=member.handle, async_op=True)  # noqa: E731
    return PreparedCall(start, output, member.table.sum(0), ())


def _all_gather(member: GroupMember) -> PreparedCall:
    mine, output = member.contribution, member.empty(member.table.numel())
    start = lambda: _gather(output, mine, group=member.handle, async_op=True)  # noqa: E731
    return PreparedCall(start, output, member.table.flatten(), member.group.ranks)


def _reduce_scatter(member: GroupMember) -> PreparedCall:
    members = len(member.group.ranks)
    mine, output = member.contribution, member.empty(member.table.shape[1] // members)
    start = lambda: _reduce_scatter_blocks(output, mine, group=member.handle, async_op=True)  # noqa: E731
    return PreparedCall(start, output, member.table.sum(0).chunk(members)[member.index], ())


def _all_to_all(member: GroupMember) -> PreparedCall:
    mine, output = member.contribution, member.empty(member.table.shape[1])
    start = lambda: dist.all_to_all_single(output, mine, group=member.handle, async_op=True)  # noqa: E731
    blocks = member.table.view(len(member.group.ranks), len(member.group.ranks), -1)
    return PreparedCall(start, output, blocks[:, member.index].flatten(), member.group.ranks)


def _broadcast(member: GroupMember) -> PreparedCall:
    source = member.group.ranks[0]
    output = member.contribution if member.index == 0 else member.empty(member.table.shape[1])
    start = lambda: dist.broadcast(output, source, group=member.handle, async_op=True)  # noqa: E731
    return PreparedCall(start, output, member.table[0], (source,))


OPERATIONS: dict[str, Callable[[GroupMember], PreparedCall]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}


def try_collectives(member: GroupMember, seconds: float) -> Iterator[CollectiveCheck]:
    """Test each operation in turn; stop after one that does not end.

    Args:
        member: this rank in the group.
        seconds: longest wait for one call.
    Collective: the group of the member.
    """
    for name, prepare in OPERATIONS.items():
        check = _try(member, name, prepare, seconds)
        yield check
        if check.result in ("late", "failed"):
            return


def _try(
    member: GroupMember, name: str, prepare: Callable[[GroupMember], PreparedCall], seconds: float
) -> CollectiveCheck:
    wrong: set[int] = set()
    is_wrong = False
    fastest = seconds
    for _ in range(REPEATS):
        call = prepare(member)
        tried = run_timed(call.start, dist.get_backend(member.handle), seconds)
        if tried.result != "right":
            return CollectiveCheck(*member.group, name, tried.result, (), tried.seconds, tried.words)
        fastest = min(fastest, tried.seconds)
        output = call.output.cpu()
        is_wrong |= not torch.equal(output, call.expected)
        wrong.update(_wrong_sources(output, call))
    return CollectiveCheck(*member.group, name, "wrong" if is_wrong else "right", tuple(sorted(wrong)), fastest)


def _wrong_sources(output: Tensor, call: PreparedCall) -> list[int]:
    if not call.sources:
        return []
    parts = zip(call.sources, output.chunk(len(call.sources)), call.expected.chunk(len(call.sources)), strict=True)
    return [source for source, part, expected in parts if not torch.equal(part, expected)]
