"""Run a piece of a program in a process of its own, as the chaos tests do: what they break must not break them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: exit code; None where it had to be killed, which is a hang.
        seconds: from its own first line to its end.
    """

    code: int | None
    seconds: float
    out: str
    err: str


def run_program(text: str, *arguments: str, limit: float = 30.0, env: Mapping[str, str] | None = None) -> Ended:
    """Run a program; it prints its start time in its first line, `print(time.time())`.

    Args:
        limit: seconds until it counts as hung and is killed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
    environment.pop("PYTHONUNBUFFERED", None)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = [sys.executable, "-c", text, *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit)
        ended = time.time()
        # What the program has started, or stopped, goes with it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    first = texts[0].partition("\n")[0]
    began = float(first) if first.replace(".", "", 1).isdigit() else ended
    return Ended(code, ended - began, *texts)
