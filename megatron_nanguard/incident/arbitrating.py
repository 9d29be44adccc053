"""The accused call again: on this rank, on a peer, in higher precision; and saved so that anybody can run it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_nanguard.arbitration.again import arbitrate
from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.arbitration.capture import CaughtCall
from megatron_nanguard.arbitration.peer import answer, ask
from megatron_nanguard.incident.subject import Subject
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME
from megatron_nanguard.records.arbitration import NOT_TRIED, Arbitration

PEER_SECONDS = 20.0
"""Longest wait for a peer; no peer is an answer too."""
TIME_IS_UP = "the calls before it took the time there is (--nanguard-deadline)"


@dataclass(frozen=True)
class Roles:
    """Who asks and who answers, decided alike on all ranks.

    Attributes:
        asker: the first rank with an origin; None when there is none.
        peer: a rank without one, where the asker has a call to send; else None.
    """

    asker: int | None
    peer: int | None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], ranks: Sequence[int]) -> Roles:
        """Choose from what each rank says: how many origins it has, and whether it has the call of the first.

        The peer is the last rank without an origin: most likely on another host.
        """
        accused = [(rank, can_ask) for rank, (count, can_ask) in zip(ranks, rows, strict=True) if count]
        if not accused:
            return NOBODY
        asker, can_ask = accused[0]
        others = [rank for rank, (count, _) in zip(ranks, rows, strict=True) if not count]
        return cls(asker, others[-1] if others and can_ask else None)


NOBODY = Roles(None, None)


def arbitrate_all(
    subject: Subject, calls: Sequence[CaughtCall], roles: Roles, directory: Path, deadline: float, saves: bool
) -> tuple[Arbitration, ...]:
    """Judge this rank's calls; the asker's first one on a peer as well, and saved as the incident's bundle.

    Args:
        directory: of the incident.
        deadline: of the stage; no call is begun after half of it.
        saves: the user lets the call's inputs be written.
    """
    rank, seconds = subject.coordinates.rank, min(deadline, PEER_SECONDS)
    end = time.monotonic() + deadline / 2
    if rank == roles.peer and roles.asker is not None and saves:
        answer(directory, roles.asker, rank, subject.torch_device, seconds)
    found = []
    for number, call in enumerate(calls):
        if time.monotonic() > end and not call.saved.why_not:
            # A reference in double precision may take a minute; the files of the incident must not wait for eight.
            call = replace(call, saved=replace(call.saved, why_not=TIME_IS_UP))
        is_first = rank == roles.asker and number == 0
        if is_first and saves:
            write_bundle(directory / BUNDLE_NAME, call)
        can_ask = is_first and saves and roles.peer is not None and not call.saved.why_not
        found.append(arbitrate(call, peer=ask(directory, call, seconds) if can_ask else NOT_TRIED))
    return tuple(found)
