"""Evidence that the directory could not carry: a few ranks send theirs by collective, for one rank to merge.

The directory may be full, gone or slow on some rank, or not be the same directory on all hosts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

from megatron_nanguard.coordination.vote import all_done, broadcast, exchange
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.postmortem.limits import cut_to_limit
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.records.trace import RankTrace

MOST_SENDERS: Final = 16
MOST_BYTES: Final = 256 * 1024
"""Of one rank, compressed: ten times as much as the largest trace of the tests."""
BETWEEN: Final = b"\0"
"""Between the two records; JSON has none."""


class Evidence(NamedTuple):
    """What one rank has found.

    Attributes:
        trace: None where it traced nothing.
    """

    postmortem: Postmortem
    trace: RankTrace | None


def gather(
    mine: Evidence | None,
    rank: int,
    voters: Voters,
    device: torch.device,
    faults: StageFaults,
    *,
    has_written: bool,
    sees_all: Callable[[], bool] | None,
) -> tuple[Evidence, ...]:
    """What need not be read from files: this rank's own evidence, and that of others where files do not carry it all.

    Args:
        has_written: this rank's evidence is on disk.
        sees_all: whether the rank that merges sees the files of all ranks; None on the others.
    Collective: all voters.
    """
    are_written = all_done(has_written, voters, device)
    are_seen = sees_all is None or faults.attempt("look at the files", sees_all, False)
    if all_done(are_seen, voters, device) and are_written:
        return () if mine is None else (mine,)
    return share(mine, rank, voters, device, faults)


def share(
    mine: Evidence | None, rank: int, voters: Voters, device: torch.device, faults: StageFaults
) -> tuple[Evidence, ...]:
    """Send this rank's evidence if it is among the most important; give that of all senders.

    Args:
        mine: None where the first post-mortem could not be made.
    Collective: all voters.
    """
    data = faults.attempt("sending of evidence", lambda: b"" if mine is None else pack(mine), b"")
    weights = [weight for (weight,) in exchange((_weight(mine) if data else 0,), voters, device)]
    received = [broadcast(data, sender, MOST_BYTES, voters, device) for sender in senders(weights, voters.ranks)]
    return faults.attempt("reading of evidence", lambda: tuple(unpack(each) for each in received), ())


def senders(weights: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """The ranks that send, the most important first; the same on all ranks."""
    weighed = sorted((-weight, rank) for weight, rank in zip(weights, ranks, strict=True) if weight)
    return [rank for _, rank in weighed[:MOST_SENDERS]]


def _weight(mine: Evidence | None) -> int:
    """3 with an origin, 2 bad before the reduction, 1 else; 0 sends nothing."""
    if mine is None:
        return 0
    if mine.trace is not None and mine.trace.origins:
        return 3
    flags = mine.postmortem.flags
    return 2 if flags.local or flags.loss else 1


def pack(evidence: Evidence) -> bytes:
    """As bytes; without the trace if it makes them too many, and empty if they still are."""
    postmortem = to_json(cut_to_limit(evidence.postmortem))
    trace = b"" if evidence.trace is None else to_json(evidence.trace)
    for text in (postmortem + BETWEEN + trace, postmortem + BETWEEN):
        packed = zlib.compress(text)
        if len(packed) <= MOST_BYTES:
            return packed
    return b""


def unpack(data: bytes) -> Evidence:
    """The reverse of `pack`.

    Raises:
        PostmortemError, zlib.error: it was damaged on its way.
    """
    postmortem, _, trace = zlib.decompress(data).partition(BETWEEN)
    return Evidence(from_json(Postmortem, postmortem), from_json(RankTrace, trace) if trace else None)
