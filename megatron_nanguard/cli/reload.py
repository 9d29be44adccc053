"""`nanguard reload DIR`: run the captured step of an incident again in a fresh job."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from megatron_nanguard.cli.run import become
from megatron_nanguard.errors import NanguardError, ReplayError
from megatron_nanguard.postmortem.search import find_incident


@click.command("reload", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("words", metavar="[SCRIPT] [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(directory: Path, words: tuple[str, ...]) -> Callable[[], None]:
    """Run the step of the newest incident in DIR again, as one rank of a fresh job, and compare its gradients.

    The incident must have been captured with --nanguard-capture full. The job needs the number of ranks and the
    parallel layout of the run. Without SCRIPT, the run's own script is started with the run's arguments. ARGS, such as
    another --transformer-impl, are added after them.
    Exit code 0 when every gradient of every rank is the same bit for bit, 1 when one is not, 5 when the script ended
    before they could be compared.

    \b
    Examples:
      torchrun --nproc_per_node 8 -m megatron_nanguard reload nanguard
      torchrun --nproc_per_node 8 -m megatron_nanguard reload nanguard --transformer-impl local
      nanguard cpu-run --nproc 8 scripts/nanguard.py reload nanguard
    """
    return lambda: _run_again(find_incident(directory), words)


def _run_again(incident: Path, words: tuple[str, ...]) -> None:
    """Install the hooks of the reload instead of those of the guard, then run the script in this process."""
    import megatron_nanguard

    try:
        from megatron_nanguard.capture import check
        from megatron_nanguard.reloading.reload_job import ReloadJob, command_line
    except ModuleNotFoundError as error:
        raise ReplayError(f"a step can only be run where torch is installed: {error}") from None
    check(incident, int(os.environ.get("RANK", "0")))
    script, *args = command_line(incident, words)
    megatron_nanguard.disable()
    os.environ["NANGUARD"] = "0"
    rerun = ReloadJob(incident.absolute())
    rerun.install()
    try:
        become(script, args)
    finally:
        if not rerun.has_compared:
            _refuse_early_end(script)


def _refuse_early_end(script: str) -> None:
    """Raise ReplayError for a script that ended before its step, since its own exit code could mean a result.

    Raises:
        ReplayError: always, unless the script was interrupted or raised a NanguardError, which goes on to the caller.
    """
    error = sys.exc_info()[1]
    if isinstance(error, NanguardError | KeyboardInterrupt):
        return
    if isinstance(error, Exception):
        traceback.print_exception(error)
    why = f" ({type(error).__name__}: {error})" if error else ""
    raise ReplayError(f"{script} ended without a training step{why}") from None
