"""The collectives of the guard: one per healthy step, a few per alarm, all of integers or bytes and of fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_nanguard.coordination.voting_ranks import Voters


def vote(flags: Tensor, voters: Voters) -> list[int]:
    """Return the maximum of each flag over all voters.

    Args:
        flags: int32 [n] on the training device; overwritten.
    Sync: one host read, the only one of a healthy step.
    Collective: all voters, MAX.
    """
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=voters.group)
    counts: list[int] = flags.cpu().tolist()
    return counts


def exchange(mine: Sequence[int], voters: Voters, device: torch.device) -> list[list[int]]:
    """Return the rows of all voters, in the order of ``voters.ranks``.

    Args:
        mine: the row of this rank; the same number of integers on every rank.
    Sync: one host read.
    Collective: all voters.
    """
    sent = torch.tensor(list(mine), dtype=torch.int64, device=device)
    rows = [torch.empty_like(sent) for _ in voters.ranks]
    dist.all_gather(rows, sent, group=voters.group)
    found: list[list[int]] = torch.stack(rows).cpu().tolist()
    return found


def all_done(done: bool, voters: Voters, device: torch.device) -> bool:
    """Whether all voters are done; no rank returns before all have asked.

    Sync: one host read.
    Collective: all voters, MIN.
    """
    flag = torch.full((1,), int(done), dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=voters.group)
    return bool(flag.cpu().item())


def broadcast(data: bytes, sender: int, num_bytes: int, voters: Voters, device: torch.device) -> bytes:
    """Hand the bytes of one rank to all voters.

    Args:
        data: of the sender, at most ``num_bytes`` long; of no account on other ranks.
        sender: its global rank.
        num_bytes: the same on all ranks.
    Sync: one host read.
    Collective: all voters.
    """
    framed = len(data).to_bytes(8, "little") + data
    sent = torch.zeros(8 + num_bytes, dtype=torch.uint8)
    sent[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
    sent = sent.to(device)
    dist.broadcast(sent, sender, group=voters.group)
    received = sent.cpu().numpy().tobytes()
    return received[8 : 8 + int.from_bytes(received[:8], "little")]
