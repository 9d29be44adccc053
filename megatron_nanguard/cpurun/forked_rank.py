"""What one forked rank does, from the fork to its exit."""

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
    """The script that every rank runs.

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
    """What the launcher gives to one rank.

    Attributes:
        rank: Global rank.
        nproc: Number of ranks, all on this machine.
        port: Port of the rendezvous store, which runs in the launcher.
        launcher_pid: The rank ends when this process ends.
        stdout: Write end of a pipe.
        stderr: Write end of a pipe.
        launcher_descriptors: File descriptors of the launcher, which the rank closes.
    """

    rank: int
    nproc: int
    port: int
    launcher_pid: int
    stdout: int
    stderr: int
    launcher_descriptors: Sequence[int]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that torchrun would set."""
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
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is a client of the store as well
            "TORCHELASTIC_RESTART_COUNT": "0",
        }


def run_rank(forked: ForkedRank, program: Program, on_failure: Callable[[], None]) -> NoReturn:
    """Body of a forked rank.

    Args:
        forked: Its number, pipes and rendezvous.
        program: The script that it runs.
        on_failure: Called at the moment of its failure.
    """
    code = 1
    try:
        _set_up(forked)
        if program.in_rank is not None:
            program.in_rank()
        code = run_script(program.script, program.args, on_failure)
        _exit_as_python_does(code)
    except BaseException:  # no exception may reach the launcher's frames, which this process has copied
        on_failure()
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux); exit now if the parent has ended already."""
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


def _set_up(forked: ForkedRank) -> None:
    os.setpgid(0, 0)  # its own process group, which its data loader workers join
    die_with(forked.launcher_pid)
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)
    redirect(forked.stdout, forked.stderr)
    for descriptor in (forked.stdout, forked.stderr, *forked.launcher_descriptors):
        os.close(descriptor)
    faulthandler.enable(sys.stderr)
    faulthandler.register(STACKS_SIGNAL, sys.stderr, all_threads=True)
    os.environ.update(forked.environment)
    if forked.rank:
        warnings.filterwarnings("ignore")  # rank 0 shows those of Megatron and torch


def _exit_as_python_does(code: int) -> None:
    """Join threads, run exit handlers, destroy process groups; skip the slow teardown of modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    distributed = sys.modules.get("torch.distributed")
    if code == 0 and distributed is not None and distributed.is_initialized():
        with contextlib.suppress(RuntimeError):  # a peer may have ended already
            distributed.destroy_process_group()
