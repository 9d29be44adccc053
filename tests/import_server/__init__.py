"""One import of torch and Megatron for many launches.

server = Server.start()
finished = server.run(8, "pretrain_gpt.py", args)
assert finished.code == 0, finished.out
server.stop()

The process behind it is `__main__.py`. It imports once, then forks a launcher of `megatron_nanguard.cpurun` for each
job.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.preload import PRELOAD
from megatron_nanguard.cpurun.waiting import LAST_LINES

_ROOT = Path(__file__).resolve().parents[2]
_RANK_LINE = re.compile(r"\[rank(\d+)\] ?(.*)")


@dataclass(frozen=True)
class Job:
    """The request for one launch.

    Attributes:
        nproc: Number of ranks.
        script: Path of the script.
        args: Its arguments.
        output: File that gets everything printed.
        codes: File that gets the ranks' exit codes.
        cwd: Working directory.
        env: Added to the environment.
        timeout: Seconds until the stacks are printed and the ranks ended.
        linger: Seconds that ranks have to end by themselves once one failed.
        in_rank: `module:function` called in each rank before the script.
    """

    nproc: int
    script: str
    args: list[str]
    output: str
    codes: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    timeout: float | None = None
    linger: float = 1.0
    in_rank: str | None = None

    def to_line(self) -> str:
        """The request, without the newline."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """Read a request that `to_line` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Finished:
    """A launch that ended.

    Attributes:
        code: Exit code of the launcher.
        codes: Rank to exit code, of the ranks that ended by themselves.
        out: Everything printed; lines of ranks carry [rankN].
        seconds: From request to reply.
    """

    code: int
    codes: Mapping[int, int]
    out: str
    seconds: float

    def lines(self, rank: int) -> list[str]:
        """Lines that one rank printed; those that the launcher repeats of a failed rank count once."""
        found = (_RANK_LINE.match(line) for line in self.out.partition(LAST_LINES)[0].splitlines())
        return [match[2] for match in found if match and int(match[1]) == rank]


class Server:
    """A process that has torch and Megatron imported; jobs run one after the other.

    Of `megatron_nanguard` only `cpurun` is imported in it: a job is stock Megatron unless `in_rank` says otherwise.
    """

    def __init__(self, process: subprocess.Popen[str], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._process = process
        self._folder = folder
        self._jobs = 0

    @classmethod
    def start(cls, modules: Sequence[str] = PRELOAD) -> Server:
        """Start the process and wait for its imports.

        Args:
            modules: Imported before any job.
        Raises:
            LaunchRefused: The process ended during the imports.
        """
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.import_server", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NANGUARD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        server = cls(process, tempfile.TemporaryDirectory(prefix="nanguard-jobs-"))
        server._reply()  # "ready"
        return server

    def run(
        self,
        nproc: int,
        script: str | Path,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 120.0,
        linger: float = 1.0,
        in_rank: str | None = None,
        cwd: str | Path | None = None,
    ) -> Finished:
        """Launch SCRIPT on forked ranks and wait for the end; `Job` explains the arguments.

        Args:
            in_rank: For example `megatron_nanguard:enable`.
        """
        self._jobs += 1
        output = Path(self._folder.name) / f"job{self._jobs}.out"
        codes = output.with_suffix(".codes")
        job = Job(
            nproc=nproc,
            script=str(Path(script).resolve()),
            args=list(args),
            output=str(output),
            codes=str(codes),
            cwd=str(cwd or Path.cwd()),
            env=dict(env or {}),
            timeout=timeout,
            linger=linger,
            in_rank=in_rank,
        )
        started = time.monotonic()
        code = int(self._ask(job.to_line()))
        ended = json.loads(codes.read_text()) if codes.exists() else {}
        return Finished(
            code=code,
            codes={int(rank): status for rank, status in ended.items()},
            out=output.read_text(errors="replace"),
            seconds=time.monotonic() - started,
        )

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._reply()

    def _reply(self) -> str:
        assert self._process.stdout is not None
        reply = self._process.stdout.readline().strip()
        if not reply:
            code = self._process.wait()
            self.stop()
            raise LaunchRefused(f"the import server ended with code {code}; its message is on stderr")
        return reply

    def stop(self) -> None:
        """End the process, and with it a job that still runs."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()
