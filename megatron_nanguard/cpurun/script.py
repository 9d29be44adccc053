"""Run a script as `__main__` in this process."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path


def _ignore() -> None:
    pass


def run_script(script: str, args: Sequence[str], on_failure: Callable[[], None] = _ignore) -> int:
    """Run SCRIPT as Python itself would, and return its exit code.

    Args:
        script: Path of the script; its folder becomes the first entry of `sys.path`.
        args: Its arguments, untouched.
        on_failure: Called as soon as the script fails, before anything is printed.
    """
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        code = _exit_code(leaving)
        if code:
            on_failure()
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        return code
    except BaseException:  # the script's own failure, shown as the interpreter shows it
        on_failure()
        traceback.print_exc()
        return 1
    return 0


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    return leaving.code if isinstance(leaving.code, int) else 1
