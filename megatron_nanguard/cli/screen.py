"""`nanguard screen`: test devices, links and collectives of a job without its model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatron_nanguard.cli import SECONDS, say
from megatron_nanguard.errors import SettingsError
from megatron_nanguard.records.json.record_file import write_record

if TYPE_CHECKING:
    from megatron_nanguard.records.machine.screening import Screening

SIZE = click.IntRange(min=1)


@click.command("screen")
@click.option("--tp", type=SIZE, default=1, help="Tensor parallel size of the job (default 1).")
@click.option("--pp", type=SIZE, default=1, help="Pipeline parallel size (default 1).")
@click.option("--cp", type=SIZE, default=1, help="Context parallel size (default 1).")
@click.option("--ep", type=SIZE, default=1, help="Expert parallel size (default 1).")
@click.option("--expert-tp", type=SIZE, help="Tensor parallel size inside the experts (default: that of --tp).")
@click.option(
    "--memory-share",
    type=click.FloatRange(min=0, max=0.9),
    help="Share of each device's free memory that is tested (default 0.5 on an accelerator, 0.01 on the CPU).",
)
@click.option(
    "--deadline",
    type=SECONDS,
    default=120.0,
    help="Seconds that one operation may take before it counts as late (default 120).",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to FILE.")
def command(
    tp: int,
    pp: int,
    cp: int,
    ep: int,
    expert_tp: int | None,
    memory_share: float | None,
    deadline: float,
    json_file: Path | None,
) -> int:
    """Try every device, link and collective of this job with known data, and name the outliers.

    Start it like the training, with torchrun for example, and give the sizes of the layout. Every device computes and
    is compared with the CPU. Every link of the layout and every collective of every parallel group transfers data that
    both ends know. When a collective fails, further tests look for the rank or link at fault. Exit code 0 when there
    is no outlier, 1 when there is one, 2 when the options do not fit the job; torchrun itself exits with 1 for any
    code but 0.

    \b
    Examples:
      torchrun --nproc-per-node 8 -m megatron_nanguard screen --tp 2 --pp 2 --json screening.json
      nanguard cpu-run --nproc 8 scripts/nanguard.py screen --tp 2 --pp 2
    """
    _refuse_unwritable(json_file)
    try:
        from megatron_nanguard import screening
        from megatron_nanguard.screening.participant import world_size
    except ModuleNotFoundError as error:
        raise click.ClickException(f"a job can only be screened where torch is installed: {error}") from None
    sizes = screening.layout_of(world_size(), tp=tp, pp=pp, cp=cp, ep=ep, expert_tp=expert_tp)
    return screening.screen(sizes, deadline, memory_share, lambda result: _show(result, json_file))


def _refuse_unwritable(file: Path | None) -> None:
    """Raise SettingsError if the result cannot be written, before the checks begin, which take minutes."""
    if file is not None and not os.access(file.absolute().parent, os.W_OK):
        raise SettingsError(f"screen: --json {file}: the directory {file.absolute().parent} cannot be written")


def _show(result: Screening, json_file: Path | None) -> None:
    from megatron_nanguard.report.rendering.terminal import console_on
    from megatron_nanguard.screening.result_table import print_screening

    print_screening(result, console_on(sys.stdout, has_colour=sys.stdout.isatty()))
    if json_file is not None:
        _write(json_file, result)


def _write(file: Path, result: Screening) -> None:
    """Write the result; a failure is only printed, as the other ranks wait for the exit code of this one."""
    try:
        write_record(file, result)
    except OSError as error:
        say(f"nanguard: --json {file} cannot be written: {error.strerror}", err=True)
