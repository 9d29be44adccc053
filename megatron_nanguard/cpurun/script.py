"""Run a script as `__main__`: in a forked rank, or as the rank that torchrun started."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.mapping import install
from megatron_nanguard.cpurun.preload import preload


def run_script(script: str, args: Sequence[str], on_failure: Callable[[], None] = lambda: None) -> int:
    """Run SCRIPT as Python itself would, and return its exit code.

    Args:
        script: Path of the script; its folder becomes the first entry of `sys.path`.
        args: Its arguments.
        on_failure: Called as soon as the script fails, before anything is printed.
    """
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if code:
            on_failure()
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        return code
    except BaseException:  # an error of the script, printed as the interpreter prints it
        on_failure()
        traceback.print_exc()
        return 1
    return 0


def run_under_torchrun(script: str, args: Sequence[str], in_rank: Callable[[], None] | None = None) -> int:
    """Map the device, import Megatron, and run SCRIPT as the rank that torchrun started; returns its exit code.

    Args:
        script: Path of the script.
        args: Its arguments.
        in_rank: Called before the script.
    Raises:
        LaunchRefused: The environment variables of torchrun are not set.
    """
    if "RANK" not in os.environ:
        raise LaunchRefused(
            "RANK is not set, expected torchrun's environment: start it with torchrun --nproc-per-node N -m "
            "megatron_nanguard --cpu SCRIPT, or fork the ranks with nanguard cpu-run --nproc N SCRIPT"
        )
    install()
    preload()
    if in_rank is not None:
        in_rank()
    return run_script(script, args)
