"""Import once, fork the ranks, and end every one of them.

[cpu-run] import 6.3 s, ranks 4.1 s
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from megatron_nanguard.cpurun.forked_rank import LOOPBACK, STOPPING_SIGNALS, ForkedRank, Program
from megatron_nanguard.cpurun.mapping import install
from megatron_nanguard.cpurun.preload import PRELOAD, preload, refuse_threads
from megatron_nanguard.cpurun.processes import RankProcesses
from megatron_nanguard.cpurun.rank_output import RankOutput
from megatron_nanguard.cpurun.waiting import LINGER_SECONDS, JobResult, conclude, say, wait_for_end

_GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL
_DRAIN_SECONDS = 1.0  # for output that an ended rank left in its pipe


class _Stopped(BaseException):
    """The launcher was asked to end (Ctrl-C, SIGTERM, SIGHUP)."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def launch(
    nproc: int,
    script: str,
    args: Sequence[str],
    *,
    timeout: float | None = None,
    show: Collection[int] | None = None,
    in_rank: Callable[[], None] | None = None,
    modules: Sequence[str] = PRELOAD,
    linger: float = LINGER_SECONDS,
) -> JobResult:
    """Run SCRIPT on forked CPU ranks.

    Args:
        nproc: Number of ranks.
        script: Path of the script.
        args: Its arguments.
        timeout: Seconds after the import until all stacks are printed and the ranks ended; None for no limit.
        show: RankProcesses whose output is printed; None for all.
        in_rank: Called in each rank before the script.
        modules: Imported before the fork.
        linger: Seconds that the others have to end by themselves once a rank failed.
    Raises:
        LaunchRefused: This process cannot be forked, see `refuse_threads`.
    """
    started = time.monotonic()
    try:
        with _stopping_signals(_stop):  # as an exception, so that `finally` blocks run
            install()
            preload(modules)
            refuse_threads()
            imported = time.monotonic()
            result = _run(nproc, Program(script, args, in_rank), timeout, show, linger)
    except _Stopped as stopped:
        return JobResult(stopped.code, {})
    if result.code == 0:
        say(f"import {imported - started:.1f} s, ranks {time.monotonic() - imported:.1f} s")
    return result


def _stop(number: int, frame: object) -> None:
    raise _Stopped(number)


@contextmanager
def _stopping_signals(handler: Callable[[int, object], None] | signal.Handlers) -> Iterator[None]:
    """Handle the signals that ask the launcher to end."""
    previous = {number: signal.signal(number, handler) for number in STOPPING_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


def _run(nproc: int, program: Program, timeout: float | None, show: Collection[int] | None, linger: float) -> JobResult:
    output, ranks = RankOutput(show), RankProcesses(nproc)
    listener = socket.create_server((LOOPBACK, 0), backlog=4 * nproc)
    gc.freeze()  # the garbage collector would write to, and so copy, every imported page in every rank
    try:
        for rank in range(nproc):
            stdout, stderr = output.connect(rank)
            forked = ForkedRank(
                rank=rank,
                nproc=nproc,
                port=listener.getsockname()[1],
                launcher_pid=os.getpid(),
                stdout=stdout,
                stderr=stderr,
                launcher_descriptors=(listener.fileno(), *output.read_ends),
            )
            ranks.fork(forked, program)
            os.close(stdout)
            os.close(stderr)
        with _rendezvous(listener):
            in_time = wait_for_end(ranks, output, timeout, linger)
    finally:
        _bring_down(ranks, output)
        listener.close()
        gc.unfreeze()
    result = conclude(ranks, output, nproc, in_time)
    output.close()
    return result


@contextmanager
def _rendezvous(listener: socket.socket) -> Iterator[None]:
    """Run the rendezvous store in the launcher: its port is bound already, and it survives the end of rank 0.

    Opened after the fork, because it starts a thread. Ranks that connect earlier wait in the queue of the port.
    """
    from torch._C._distributed_c10d import TCPStore

    port = listener.getsockname()[1]
    store = TCPStore(LOOPBACK, port, None, True, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno()))
    yield
    del store


def _bring_down(ranks: RankProcesses, output: RankOutput) -> None:
    """End the ranks that still run and print the rest of their output; a second Ctrl-C does not interrupt this."""
    with _stopping_signals(signal.SIG_IGN):
        ranks.bring_down(_GRACE_SECONDS, lambda: output.pump(0.05))
        until = time.monotonic() + _DRAIN_SECONDS
        while output.is_open and time.monotonic() < until:
            output.pump(0.05)
