"""`nanguard run SCRIPT ARGS...`: run an unmodified training script with the hooks of the guard."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import click

from megatron_nanguard.errors import SettingsError


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--cpu", is_flag=True, help="Run CUDA code on the CPU in this process; for ranks that torchrun started.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(cpu: bool, script: str, args: tuple[str, ...]) -> Callable[[], None]:
    """Run SCRIPT with ARGS as the main program of this process, under the guard.

    The exit code is that of the script, or 65 if the guard ended the run.

    \b
    Examples:
      nanguard run pretrain_gpt.py --nanguard ...
      torchrun --nproc_per_node 8 -m megatron_nanguard pretrain_gpt.py --nanguard ...
    """
    start = _on_cpu if cpu else _here
    return lambda: start(script, list(args))


def _here(script: str, args: list[str]) -> None:
    """Install the hooks, then run the script in this process; its exceptions reach the interpreter unchanged."""
    import megatron_nanguard

    megatron_nanguard.enable()
    become(script, args)


def become(script: str, args: list[str]) -> None:
    """Run a script in this process, in the same way as `python SCRIPT ARGS...`."""
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def _on_cpu(script: str, args: list[str]) -> None:
    """Install the hooks and run the script on one CPU rank that torchrun started; exit with its code."""
    import megatron_nanguard
    from megatron_nanguard import cpurun
    from megatron_nanguard.cpurun.errors import LaunchRefused

    try:
        code = cpurun.run_under_torchrun(script, args, in_rank=megatron_nanguard.enable)
    except LaunchRefused as refused:
        raise SettingsError(f"run --cpu: {refused}") from refused
    sys.exit(code)
