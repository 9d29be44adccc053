"""`nanguard cpu-run --nproc 8 SCRIPT ARGS...`: run a Megatron script on CPU ranks of this machine."""

from __future__ import annotations

import sys

import click

from megatron_nanguard.cli import SECONDS


def rank_list(ctx: click.Context, param: click.Parameter, value: str | None) -> frozenset[int] | None:
    """Parse rank numbers with commas between them, such as `0,7`."""
    if value is None:
        return None
    try:
        return frozenset(int(rank) for rank in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r}: rank numbers with commas between them expected, e.g. 0,7") from None


@click.command(
    name="cpu-run",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[--nproc N] [--timeout SECONDS] [--show RANKS]",
)
@click.option("--nproc", type=click.IntRange(min=1), default=1, show_default=True, help="Number of ranks.")
@click.option(
    "--timeout",
    type=SECONDS,
    help="End the run this many seconds after the import, and print the stacks of all ranks.",
)
@click.option(
    "--show", metavar="RANKS", callback=rank_list, help="Ranks whose output is printed, e.g. 0,7 (default: all)."
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(nproc: int, timeout: float | None, show: frozenset[int] | None, script: str, args: tuple[str, ...]) -> None:
    """Run SCRIPT with ARGS, with the installed Megatron, on CPU ranks of this machine.

    torch and Megatron are imported once, then the ranks are forked. Output lines begin with [rankN]. The exit code is
    that of the first rank that fails. Add --nanguard to ARGS to run it guarded.

    \b
    Example:
      nanguard cpu-run --nproc 8 --show 0,7 pretrain_gpt.py --nanguard ...
    """
    from megatron_nanguard import cpurun
    from megatron_nanguard.cpurun.errors import CpuRunError

    try:
        code = cpurun.launch(nproc, script, args, timeout=timeout, show=show).code
    except CpuRunError as refused:
        raise click.ClickException(str(refused)) from refused
    sys.exit(code)
