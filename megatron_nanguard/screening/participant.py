"""This rank in a screening: its process groups, its device, its access to the store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from megatron_nanguard.coordination.store import own_client
from megatron_nanguard.coordination.watchdog import leave_now
from megatron_nanguard.device import training_device
from megatron_nanguard.errors import NanguardError, SettingsError
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest
from megatron_nanguard.screening.store_barrier import StoreBarrier
from megatron_nanguard.screening.timed_operation import TimedResult, run_timed

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""Backend of torch.distributed by kind of device."""
MEMORY_SHARES = {"cpu": 0.01, "cuda": 0.5, "npu": 0.5}
"""Default share of the free memory; the CPU takes seconds for each GiB."""
LEAVE_SECONDS = 5.0
ACCELERATOR_TIMEOUT = timedelta(hours=1)
"""Timeout of a process group on accelerators, where it would end the process without a report: ours expires first."""


def world_size() -> int:
    """Number of ranks, from torchrun's environment.

    Raises:
        SettingsError: torchrun did not start this process.
    """
    if "RANK" not in os.environ:
        raise SettingsError(
            "RANK is not set, expected torchrun's environment: start it with torchrun --nproc-per-node N -m "
            "megatron_nanguard COMMAND"
        )
    return int(os.environ["WORLD_SIZE"])


@dataclass(frozen=True)
class Participant:
    """This rank, as the stages use it.

    Attributes:
        barrier: waits for the other ranks in the store.
        tested: the device of this rank.
        deadline: longest wait for one operation, in seconds.
    """

    barrier: StoreBarrier
    tested: DeviceUnderTest
    deadline: float

    @classmethod
    def join(cls, deadline: float, memory_share: float | None) -> Participant:
        """Start torch.distributed on the device of this rank.

        Raises:
            NanguardError: not all ranks connected in time.
        Collective: all ranks.
        """
        backend = training_device()
        device = torch.device(backend.take(int(os.environ.get("LOCAL_RANK", "0"))))
        timeout = _group_timeout(BACKENDS[backend.backend], deadline)
        try:
            dist.init_process_group(BACKENDS[backend.backend], timeout=timeout)
        except RuntimeError as error:
            raise NanguardError(
                f"rank {os.environ['RANK']}: the {world_size()} ranks did not come together in {deadline:g} s "
                f"({str(error).partition(chr(10))[0]}); see that all of them were started and reach MASTER_ADDR"
            ) from error
        if memory_share is None:
            memory_share = MEMORY_SHARES[backend.backend]
        barrier = StoreBarrier(own_client("nanguard/screening"), dist.get_rank(), dist.get_world_size())
        return cls(barrier, DeviceUnderTest(device, backend, memory_share), deadline)

    def new_group(self, ranks: tuple[int, ...]) -> tuple[dist.ProcessGroup | None, TimedResult]:
        """Make a process group; None for a rank outside of it, or when its members did not connect.

        Every rank makes every group, in the same order: torch numbers them.

        Collective: the ranks of the group connect.
        """
        made: list[dist.ProcessGroup] = []

        def make() -> None:
            group = dist.new_group(list(ranks), timeout=_group_timeout(dist.get_backend(), self.deadline))
            if isinstance(group, dist.ProcessGroup):
                made.append(group)

        tried = run_timed(make, dist.get_backend(), self.deadline)
        return (made[0] if made else None), tried

    def wait_for_all(self, stage: str) -> None:
        """Wait for the others after a stage, in which at most one operation took as long as the deadline.

        Raises:
            RanksMissing: some ranks did not come in time.
        """
        self.barrier.wait(stage, 2 * self.deadline)

    def leave(self, code: int, missing: int) -> None:
        """Leave the job; with an exit code other than 0 at once, since torch would wait for a broken group at exit.

        Args:
            code: exit code.
            missing: ranks that do not come back.
        """
        self.barrier.leave(self.barrier.world - 1 - missing, LEAVE_SECONDS)
        if code:
            leave_now(code)
        dist.destroy_process_group()


def _group_timeout(backend: str, deadline: float) -> timedelta:
    return timedelta(seconds=deadline) if backend == "gloo" else ACCELERATOR_TIMEOUT
