"""The suspect call once more: on this rank, on a peer, in higher precision; and saved so that anybody can run it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.arbitration.call_catcher import COMMUNICATES, CaughtCall, unsaved_call
from megatron_nanguard.arbitration.peer import answer, is_same_hardware, receive, send
from megatron_nanguard.arbitration.repetition import arbitrate
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.suspect_call import NOT_TRIED, Arbitration, PeerAnswer, SavedCall
from megatron_nanguard.records.trace import OriginKind

PEER_SECONDS = 20.0
"""Longest wait for a peer; no peer is an answer too."""
CAME_BACK_NOWHERE = "the fault did not come back when the step was run again; there is no call to make again"
NO_ANSWER = "no peer: the directory with its answer could not be read"
NO_OPERATOR = "no operator was found that the fault began with; there is no call to make again"
TIME_IS_UP = "the calls before it took the time there is (--nanguard-deadline)"


@dataclass(frozen=True)
class Roles:
    """Which rank asks a peer and which one answers, the same on all ranks.

    Attributes:
        asker: the first rank with an origin; None when there is none.
        peer: a rank without one, where the asker has a call to send; else None.
    """

    asker: int | None
    peer: int | None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], ranks: Sequence[int]) -> Roles:
        """Choose from one row per rank: how many origins it has, and whether it has the call of the first.

        The peer is the last rank without an origin: most likely on another host.
        """
        suspects = [(rank, can_ask) for rank, (count, can_ask) in zip(ranks, rows, strict=True) if count]
        if not suspects:
            return NOBODY
        asker, can_ask = suspects[0]
        others = [rank for rank, (count, _) in zip(ranks, rows, strict=True) if not count]
        return cls(asker, others[-1] if others and can_ask else None)


NOBODY = Roles(None, None)


def send_first(calls: Sequence[CaughtCall], roles: Roles, rank: int, files: RunDirectory, incident: str) -> None:
    """Hand the asker's first call to the peer, which waits for it already: first, since what follows may take long.

    Args:
        rank: this one.
        files: of the run.
        incident: its directory, relative to the run.
    """
    if _can_ask(calls, roles, rank):
        files.attempt(f"{incident}/peer", lambda: send(files.path / incident, calls[0]))


def _can_ask(calls: Sequence[CaughtCall], roles: Roles, rank: int) -> bool:
    return rank == roles.asker and roles.peer is not None and not calls[0].saved.why_not


def arbitrate_all(
    guarded: GuardedOptimizer,
    calls: Sequence[CaughtCall],
    roles: Roles,
    files: RunDirectory,
    incident: str,
    deadline: float,
    saves: bool,
) -> tuple[Arbitration, ...]:
    """Make this rank's suspect calls again.

    The first call of the asker was sent before: it is made on a peer too, and saved as the bundle of the incident.

    Args:
        calls: one per origin.
        files: of the run.
        incident: its directory, relative to the run.
        deadline: seconds of the stage; no call is begun after half of it.
        saves: the user lets the inputs of calls be written.
    """
    rank, seconds, directory = guarded.coordinates.rank, min(deadline, PEER_SECONDS), files.path / incident
    end = time.monotonic() + deadline / 2
    if rank == roles.peer and roles.asker is not None and saves:
        answer(directory, roles.asker, rank, guarded.torch_device, seconds)
    found = []
    for number, call in enumerate(calls):
        if time.monotonic() > end and not call.saved.why_not:
            # A reference in double precision may take a minute; the files of the incident must not wait for eight.
            call = replace(call, saved=replace(call.saved, why_not=TIME_IS_UP))
        is_first = rank == roles.asker and number == 0
        if is_first and saves:
            _save(call, files, f"{incident}/{BUNDLE_NAME}")
        can_ask = is_first and saves and _can_ask((call,), roles, rank)
        peer: PeerAnswer | str = NOT_TRIED
        if can_ask:
            received = files.attempt(f"{incident}/peer", lambda: receive(directory, rank, seconds), "read")
            peer = NO_ANSWER if received is None else received
        alike = None if isinstance(peer, str) else is_same_hardware(peer, guarded.torch_device)
        found.append(replace(arbitrate(call, peer=peer), peer_is_alike=alike))
    return tuple(found)


def _save(call: CaughtCall, files: RunDirectory, name: str) -> None:
    """Write the bundle of the incident; where that fails, one line says so."""
    if files.attempt(name, lambda: write_bundle(files.path / name, call)) is False:
        files.has_been_logged(name)


def without_call(incident: Incident) -> CaughtCall | None:
    """What goes into the bundle of a step that was run again where no rank has a suspect call; None where one has.

    There are two such cases: a spoiled transfer, which is found only when the traces of its members are joined, and a
    fault that did not come back or has no operator as its origin.
    """
    first = incident.origin[0] if incident.origin else None
    if not incident.replay.done or (first is not None and first.kind is not OriginKind.COMMUNICATION):
        return None
    if first is not None:
        call = unsaved_call(first.rank, None, first.operator, COMMUNICATES).saved
        return CaughtCall(replace(call, step=incident.step, module=first.module, phase=first.phase))
    ranks = incident.ranks.bad_before or incident.ranks.bad_after_only
    is_gone = all(one.came_back == "no" for one in incident.replay.passes)
    why_not = CAME_BACK_NOWHERE if is_gone else NO_OPERATOR
    return CaughtCall(SavedCall(rank=ranks[0] if ranks else 0, step=incident.step, operator="", why_not=why_not))
