"""The process behind `Server`: imports torch and Megatron once, then forks a launcher for every job.

Requests and replies are lines on stdin and stdout. A job's output goes to the file that the request names.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from megatron_nanguard.cpurun.forked_rank import die_with, redirect
from megatron_nanguard.cpurun.launcher import launch
from megatron_nanguard.cpurun.mapping import install
from megatron_nanguard.cpurun.preload import preload, refuse_threads
from tests.import_server import Job


def serve(modules: Sequence[str]) -> None:
    """Import, reply "ready", and run jobs until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the imports print is no reply
    install()
    preload(modules)
    refuse_threads()
    print("ready", file=replies)
    for line in sys.stdin:
        print(_run_in_child(Job.from_line(line)), file=replies)


def _run_in_child(job: Job) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with(parent)
        _run(job)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _run(job: Job) -> NoReturn:
    """Body of the forked launcher."""
    code = 1
    try:
        _enter(job)
        in_rank = None if job.in_rank is None else _calling(job.in_rank)
        outcome = launch(
            job.nproc, job.script, job.args, timeout=job.timeout, in_rank=in_rank, modules=(), linger=job.linger
        )
        with open(job.codes, "w", encoding="utf-8") as file:
            json.dump(outcome.codes, file)
        code = outcome.code
    except BaseException:  # no exception may reach the server's loop, of which this process is a copy
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _enter(job: Job) -> None:
    """Take over the files, working directory and environment of the job."""
    out = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    redirect(out, out)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir(job.cwd)
    os.environ.pop("NANGUARD", None)  # off in the server, left to each job
    os.environ.update(job.env)


def _calling(target: str) -> Callable[[], None]:
    """`module:function`, imported in the rank, not in the launcher."""
    module, _, function = target.partition(":")
    return lambda: getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close stdin
    die_with(os.getppid())
    serve(sys.argv[1:])
