"""The life of one rank, from fork to its end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from megatron_nanguard.cpurun.script import run_script

LOOPBACK = "127.0.0.1"
STACKS_SIGNAL = signal.SIGUSR1
STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Program:
    """What every rank does.

    Attributes:
        script: Path of the script.
        args: Its arguments.
        in_rank: Called before the script, in the rank.
    """

    script: str
    args: Sequence[str]
    in_rank: Callable[[], None] | None = None


@dataclass(frozen=True)
class ForkedRank:
    """Where a rank sits.

    Attributes:
        rank: Global rank.
        nproc: Number of ranks, all on this machine.
        port: Of the rendezvous store, which lives in the launcher.
        launcher_pid: The rank ends with it.
        stdout: Write end of a pipe.
        stderr: Write end of a pipe.
        not_ours: Descriptors inherited from the launcher.
    """

    rank: int
    nproc: int
    port: int
    launcher_pid: int
    stdout: int
    stderr: int
    not_ours: Sequence[int]

    @property
    def environment(self) -> dict[str, str]:
        """What torchrun would set."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.nproc),
            "LOCAL_WORLD_SIZE": str(self.nproc),
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is a client of the store, too
            "TORCHELASTIC_RESTART_COUNT": "0",
        }


def live(seat: ForkedRank, work: Program, on_failure: Callable[[], None]) -> NoReturn:
    """Body of a forked rank.

    Args:
        seat: Where it sits.
        work: What it does.
        on_failure: Stamps the moment of its failure.
    """
    code = 1
    try:
        _take(seat)
        if work.in_rank is not None:
            work.in_rank()
        code = run_script(work.script, work.args, on_failure)
        _end_as_an_interpreter(code)
    except BaseException:  # nothing may climb into the launcher's stack, of which this process is a copy
        on_failure()
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux); leave now if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def redirect(stdout: int, stderr: int) -> None:
    """Make two descriptors this process's stdout and stderr, with fresh line-buffered streams on them."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _take(seat: ForkedRank) -> None:
    os.setpgid(0, 0)  # its own group: data loader workers go down with it
    die_with(seat.launcher_pid)
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)
    redirect(seat.stdout, seat.stderr)
    for descriptor in (seat.stdout, seat.stderr, *seat.not_ours):
        os.close(descriptor)
    faulthandler.enable(sys.stderr)
    faulthandler.register(STACKS_SIGNAL, sys.stderr, all_threads=True)
    os.environ.update(seat.environment)
    if seat.rank:
        warnings.filterwarnings("ignore")  # the host's own, once from rank 0


def _end_as_an_interpreter(code: int) -> None:
    """Threads, exit handlers, groups: all but the slow tearing down of modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    distributed = sys.modules.get("torch.distributed")
    if code == 0 and distributed is not None and distributed.is_initialized():
        with contextlib.suppress(RuntimeError):  # a peer may be gone already
            distributed.destroy_process_group()
