"""Runs the stages of a screening on one rank, in step with all others."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch.distributed as dist

from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.machine.screening import BAD, CollectiveCheck, DeviceCheck, RankScreening, Transfer
from megatron_nanguard.records.phrase import name_ranks
from megatron_nanguard.screening.checks import CHECKS, check_device
from megatron_nanguard.screening.collectives import GroupMember, try_collectives
from megatron_nanguard.screening.links import try_link, unconnected
from megatron_nanguard.screening.parallel_groups import Group, Link, families, links, pairs, rounds
from megatron_nanguard.screening.participant import Participant
from megatron_nanguard.screening.stage_progress import StageProgress
from megatron_nanguard.screening.timed_operation import TimedResult

MOST_MEMBERS = 32
"""Largest group whose pairs are all tested: a rank keeps a connection to each other member."""


class RankChecks:
    """The stages, and the results of this rank.

    Attributes:
        notes: sentences about tests that were left out.
    """

    def __init__(self, participant: Participant, sizes: ParallelSizes) -> None:
        self.notes: list[str] = []
        self._participant, self._rank = participant, participant.barrier.rank
        self._families, self._links = families(sizes), links(sizes)
        self._rounds = rounds(self._links)
        steps = len(CHECKS) + len(self._rounds) + len(self._families)
        self._progress = StageProgress(steps, is_shown=self._rank == 0)
        self._devices: list[DeviceCheck] = []
        self._transfers: list[Transfer] = []
        self._collectives: list[CollectiveCheck] = []

    @property
    def result(self) -> RankScreening:
        """Results of this rank so far."""
        return RankScreening(
            rank=self._rank,
            host=socket.gethostname(),
            device=self._participant.tested.backend.facts().name,
            devices=tuple(self._devices),
            transfers=tuple(self._transfers),
            collectives=tuple(self._collectives),
        )

    def run(self) -> None:
        """Run all stages.

        Raises:
            RanksMissing: some ranks did not reach the end of a stage.
        Collective: all ranks.
        """
        with self._progress:
            self._try_device()
            if self._participant.barrier.is_marked("a device failed"):
                self.notes.append(
                    "links and collectives were not tried: a device that raised an error is of no more use"
                )
                return
            self._try_links("links", self._rounds)
            for family in self._families:
                self._try_groups(family)
            self._narrow()

    def _try_device(self) -> None:
        for name in CHECKS:
            self._announce("devices", name)
            self._devices += check_device(name, self._participant.tested)
        if any(check.result == "failed" for check in self._devices):
            self._participant.barrier.mark("a device failed")
        self._participant.wait_for_all("devices")

    def _try_links(self, stage: str, in_rounds: Sequence[Sequence[Link]]) -> None:
        for number, together in enumerate(in_rounds):
            self._announce(stage, f"round {number + 1} of {len(in_rounds)}")
            for link in together:
                handle, tried = self._participant.new_group(link)
                if self._rank in link:
                    self._transfers += self._try_link(link, handle, tried)
            self._participant.wait_for_all(f"{stage}, round {number + 1}")

    def _try_link(self, link: Link, handle: dist.ProcessGroup | None, tried: TimedResult) -> list[Transfer]:
        if handle is None:
            return list(unconnected(link, self._rank, tried))
        return list(try_link(link, self._rank, handle, self._participant.tested.device, self._participant.deadline))

    def _try_groups(self, family: Sequence[Group]) -> None:
        self._announce("collectives", f"{family[0].axis}, {len(family)} groups")
        for group in family:
            handle, tried = self._participant.new_group(group.ranks)
            if self._rank in group.ranks:
                seen = self._try_group(group, handle, tried)
                self._collectives += seen
                if any(check.result in BAD for check in seen):
                    self._participant.barrier.mark(str(group.ranks))
        self._participant.wait_for_all(f"collectives, {family[0].axis}")

    def _try_group(self, group: Group, handle: dist.ProcessGroup | None, tried: TimedResult) -> list[CollectiveCheck]:
        if handle is None:
            return [CollectiveCheck(*group, "connect", tried.result, (), tried.seconds, tried.words)]
        member = GroupMember.of(group, handle, self._rank, self._participant.tested.device)
        return list(try_collectives(member, self._participant.deadline))

    def _narrow(self) -> None:
        """Test all pairs of the groups that failed on any rank, except links that were tested already."""
        failed = [group.ranks for family in self._families for group in family]
        failed = [ranks for ranks in failed if self._participant.barrier.is_marked(str(ranks))]
        for ranks in failed:
            if len(ranks) > MOST_MEMBERS:
                self.notes.append(f"the pairs of {name_ranks(ranks)} were not tried: more than {MOST_MEMBERS} members")
        wanted = pairs(ranks for ranks in failed if len(ranks) <= MOST_MEMBERS)
        self._try_links("pairs of failed groups", rounds([pair for pair in wanted if pair not in self._links]))

    def _announce(self, stage: str, detail: str) -> None:
        self._participant.barrier.set_activity(f"{stage}, {detail}")
        self._progress.step(stage, detail)
