"""Tests a link: known bytes from one rank to the other and back, with digests at both ends.

Each link has its own process group: on gloo a message that never arrives breaks all connections of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist

from megatron_nanguard.records.machine.screening import Result, Transfer
from megatron_nanguard.screening.known_data import digest_of, random_bytes
from megatron_nanguard.screening.parallel_groups import Link
from megatron_nanguard.screening.timed_operation import TimedResult, run_timed

PAYLOAD_BYTES = 4 << 20
WARM_UP_BYTES = 8


def try_link(
    link: Link, rank: int, group: dist.ProcessGroup, device: torch.device, seconds: float
) -> Iterator[Transfer]:
    """Test both directions, and give the results of this end; stop after a transfer that does not end.

    Args:
        link: this rank and its peer.
        rank: this rank.
        group: of the two.
        device: that holds the data.
        seconds: longest wait for one message.
    Collective: both ranks of the link.
    """
    low, high = link
    for source, target in ((low, high), (high, low)):
        transfer = _transfer(source, target, rank, group, device, seconds)
        yield transfer
        if transfer.result in ("late", "failed"):
            return


def unconnected(link: Link, rank: int, tried: TimedResult) -> Iterator[Transfer]:
    """Results for both directions of a link that did not connect."""
    low, high = link
    for source, target in ((low, high), (high, low)):
        yield Transfer(source, target, _end(source, rank), tried.result, "", "", tried.seconds, tried.words)


def _transfer(
    source: int, target: int, rank: int, group: dist.ProcessGroup, device: torch.device, seconds: float
) -> Transfer:
    data = random_bytes(PAYLOAD_BYTES, "link", source, target)
    expected = digest_of(data)
    sends = rank == source
    buffer = data.to(device) if sends else torch.zeros(PAYLOAD_BYTES, dtype=torch.uint8, device=device)
    warm_up = torch.zeros(WARM_UP_BYTES, dtype=torch.uint8, device=device)
    operation, peer = (dist.isend, target) if sends else (dist.irecv, source)
    tried = TimedResult("right", 0.0)
    for message in (warm_up, buffer):
        tried = run_timed(partial(operation, message, peer, group=group), dist.get_backend(group), seconds)
        if tried.result != "right":
            return Transfer(source, target, _end(source, rank), tried.result, "", expected, tried.seconds, tried.words)
    digest = digest_of(buffer)
    result: Result = "right" if digest == expected else "wrong"
    return Transfer(source, target, _end(source, rank), result, digest, expected, tried.seconds)


def _end(source: int, rank: int) -> Literal["sent", "arrived"]:
    return "sent" if rank == source else "arrived"
