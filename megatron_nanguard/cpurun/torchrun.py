"""One rank in a process that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.mapping import install
from megatron_nanguard.cpurun.preload import preload
from megatron_nanguard.cpurun.script import run_script


def run_under_torchrun(script: str, args: Sequence[str], in_rank: Callable[[], None] | None = None) -> int:
    """Map the device, import Megatron, run SCRIPT as this rank; returns its exit code.

    Raises:
        LaunchRefused: torchrun's environment is not there.
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
