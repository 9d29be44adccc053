"""Leaving a process, seen from outside."""

from __future__ import annotations

import subprocess
import sys
import time

IMPORT = "from megatron_nanguard.policy import abort\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", IMPORT + code], capture_output=True, text=True, timeout=50)


def test_the_host_cleans_up_and_the_code_is_65() -> None:
    done = run("import atexit\natexit.register(print, 'cleaned up')\nabort.leave(patience=30.0)")
    assert (done.returncode, done.stdout) == (65, "cleaned up\n")


def test_a_host_that_hangs_in_its_clean_up_is_left_all_the_same() -> None:
    began = time.monotonic()
    code = (
        "import atexit, time\nprint('last words', end='')\natexit.register(time.sleep, 45)\nabort.leave(patience=0.2)"
    )
    done = run(code)
    assert (done.returncode, done.stdout) == (65, "last words")
    assert time.monotonic() - began < 40


def test_a_host_that_catches_the_exit_is_left_all_the_same() -> None:
    done = run("import time\ntry:\n    abort.leave(patience=0.2)\nexcept SystemExit:\n    time.sleep(45)")
    assert done.returncode == 65
