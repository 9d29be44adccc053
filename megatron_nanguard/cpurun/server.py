"""One import of torch and Megatron for many launches, for tests.

server = Server.start()
finished = server.run(8, "pretrain_gpt.py", args)
assert finished.code == 0, finished.out
server.stop()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.job import Finished, Job
from megatron_nanguard.cpurun.preload import PRELOAD

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


class Server:
    """A process that has torch and Megatron imported; jobs run one after the other.

    Nothing of this package is imported in it but `cpurun`: a job is stock Megatron unless `in_rank` says otherwise.
    """

    def __init__(self, process: subprocess.Popen[str], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._process = process
        self._folder = folder
        self._jobs = 0

    @classmethod
    def start(cls, modules: Sequence[str] = PRELOAD) -> Server:
        """Start the process and wait for its imports.

        Args:
            modules: What it imports before any job.
        Raises:
            LaunchRefused: It ended during the imports.
        """
        path = os.pathsep.join(filter(None, (str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-m", "megatron_nanguard.cpurun.serving", *modules],
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
        """Launch SCRIPT on forked ranks and wait for the end.

        Args:
            nproc: Number of ranks.
            script: Path of the script.
            args: Its arguments.
            env: Added to the environment of the ranks.
            timeout: Seconds until all stacks are printed and the ranks ended (exit code 124).
            linger: Seconds that the other ranks have to end by themselves once one failed.
            in_rank: `module:function` called in each rank before the script, e.g. `megatron_nanguard:enable`.
            cwd: Working directory of the ranks.
        """
        output = self._new_file("out")
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

    def _new_file(self, suffix: str) -> Path:
        self._jobs += 1
        return Path(self._folder.name) / f"job{self._jobs}.{suffix}"

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
