"""Devices and links that fail on purpose: `in_rank="tests.ranks.faulty_ranks:..."`, called before the screening."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BAD_DEVICE = 5
SENDER, RECEIVER = 4, 6
GROUPS_OF_THE_LINK = [(4, 6), (0, 1, 2, 3, 4, 5, 6, 7)]


def bad_device() -> None:
    """Products in bfloat16 have one wrong element on one rank, as from a compute unit that is broken."""
    if _rank() == BAD_DEVICE:
        matmul = torch.matmul

        def broken(a: Tensor, b: Tensor) -> Tensor:
            product = matmul(a, b)
            if a.dtype is torch.bfloat16:
                product.view(-1)[77] += 32.0
            return product

        torch.matmul = broken  # type: ignore[assignment]


def bad_link() -> None:
    """What one rank receives from another has a flipped bit, alone and in the collectives of groups with both."""
    if _rank() == RECEIVER:
        _after("irecv", lambda tensor, source, group: source == SENDER, _flip_a_byte)
        _after("all_reduce", lambda tensor, group: _ranks(group) in GROUPS_OF_THE_LINK, _add_one)


def bad_device_and_link() -> None:
    """Both at once."""
    bad_device()
    bad_link()


def bad_sender() -> None:
    """All data from one rank arrives wrong, at every receiver."""
    _after("irecv", lambda tensor, source, group: source == SENDER, _flip_a_byte)


def bad_collective() -> None:
    """One group's sum is wrong on one member, although every link of the group is in order."""
    if _rank() == RECEIVER:
        _after("all_reduce", lambda tensor, group: _ranks(group) == (4, 6), _add_one)


def hung_link() -> None:
    """What one rank sends to another never leaves; both collectives over the link hang as well."""
    if _rank() == SENDER:
        isend, all_reduce = dist.isend, dist.all_reduce

        def swallowed(tensor: Tensor, target: int, group: Any) -> Any:
            return None if target == RECEIVER else isend(tensor, target, group=group)

        def waiting(tensor: Tensor, group: Any, async_op: bool) -> Any:
            return None if _ranks(group) == (4, 6) else all_reduce(tensor, group=group, async_op=async_op)

        dist.isend, dist.all_reduce = swallowed, waiting  # type: ignore[assignment]


def failing_device() -> None:
    """One device raises, as a GPU does after an uncorrectable error."""
    if _rank() == BAD_DEVICE:

        def failing(*args: Any) -> Tensor:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

        torch.matmul = failing  # type: ignore[assignment]


def hung_device() -> None:
    """One device never ends a product."""
    if _rank() == BAD_DEVICE:
        torch.matmul = lambda a, b: time.sleep(600)  # type: ignore[assignment, return-value]


def nan_on_one_rank() -> None:
    """A loss of the check of gradients turns bad on one rank."""
    if _rank() == 1:
        square = torch.square
        torch.square = lambda tensor: square(tensor) * torch.nan  # type: ignore[assignment]


def other_bits_on_one_rank() -> None:
    """The same, by a little."""
    if _rank() == 1:
        square = torch.square
        torch.square = lambda tensor: square(tensor) * 1.001  # type: ignore[assignment]


class _Spoiled:
    """Work whose result is changed once it has ended."""

    def __init__(self, work: Any, spoil: Callable[[], None]) -> None:
        self._work, self._spoil = work, spoil

    def wait(self, timeout: timedelta) -> bool:
        self._work.wait(timeout)
        self._spoil()
        return True


def _after(name: str, applies: Callable[..., bool], spoil: Callable[[Tensor], None]) -> None:
    original = getattr(dist, name)

    def spoiled(tensor: Tensor, *args: Any, group: Any, **kwargs: Any) -> Any:
        work = original(tensor, *args, group=group, **kwargs)
        return _Spoiled(work, lambda: spoil(tensor)) if applies(tensor, *args, group) else work

    setattr(dist, name, spoiled)


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _flip_a_byte(tensor: Tensor) -> None:
    tensor[len(tensor) // 2] ^= 4


def _add_one(tensor: Tensor) -> None:
    tensor[3] += 1


def _rank() -> int:
    return int(os.environ["RANK"])
