"""`nanguard doctor`: which patch points work here, how often a run called each, and which hardware can be read."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import click

from megatron_nanguard.cli import say
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.machine.doctor import PatchPointState
from megatron_nanguard.records.run.status import Status
from megatron_nanguard.version import __version__


@click.command("doctor")
@click.argument("run_dir", metavar="[RUN_DIR]", required=False, type=click.Path(path_type=Path))
def command(run_dir: Path | None) -> int:
    """Say for every patch point whether it works in this environment; if not, why, and what a run would lose.

    With RUN_DIR, the directory of one run, also say how often the run called each. Then list which hardware counters
    can be read. Exit code 1 when a run would be unguarded.

    \b
    Examples:
      nanguard doctor
      nanguard doctor nanguard/runs/20260101T120000Z-ab12
    """
    statuses = [] if run_dir is None else _read_statuses(run_dir)
    say(f"megatron-nanguard {__version__}, Python {sys.version.split()[0]}")
    for package in ("torch", "torch-npu", "transformer-engine"):
        say(f"{package} {_version(package)}")
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("patch points can only be resolved where torch is installed, beside Megatron")
    from megatron_nanguard.health.available_sources import list_sources

    states = _patch_point_states()
    say(_megatron())
    say()
    for state in states:
        _print(state, statuses)
    if statuses:
        say(f"\n{len(statuses)} ranks left a status file; called: times per rank, least to most")
        for note in dict.fromkeys(note for status in statuses for note in status.notes):
            say(f"note: {note}")
    say("\nhardware counters, which are evidence in an incident:")
    for source in list_sources():
        say(f"{'ok ' if source.tells else '-- '} {source.name:26} {source.words}")
    broken = [state for state in states if not state.works]
    say(f"\n{_conclusion(states, broken)}")
    return int(any(state.essential for state in broken))


def _patch_point_states() -> Sequence[PatchPointState]:
    """Apply all patch points, read their states and remove them. NANGUARD=0 has no effect on these hooks."""
    import megatron_nanguard
    from megatron_nanguard.guard.hooks import Hooks
    from megatron_nanguard.patch_points import ESSENTIAL, release_line
    from megatron_nanguard.patching.point_states import point_states

    megatron_nanguard.disable()
    hooks = Hooks()
    hooks.install()
    try:
        warnings.simplefilter("ignore")
        return point_states(hooks.engine, ESSENTIAL, release_line)
    finally:
        hooks.remove()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _megatron() -> str:
    """Say which Megatron core was imported and from where: a tree on PYTHONPATH hides the installed one."""
    from megatron_nanguard.megatron_api.host_program import core_folder, core_version

    installed = _version("megatron-core")
    if core_folder() is None:
        return f"megatron-core {installed}, cannot be imported"
    found = f"megatron-core {core_version()} in {core_folder()}"
    is_other = installed not in ("not installed", (core_version() or "").partition("+")[0])
    return f"{found}; installed is {installed}" if is_other else found


def _print(state: PatchPointState, statuses: Sequence[Status]) -> None:
    mark = "ok " if state.works else "NO "
    called = f"  called {_num_calls(state.target, statuses)}" if statuses else ""
    say(f"{mark} {state.point:26} {state.words}{called}")
    say(f"      {state.target}")


def _conclusion(states: Sequence[PatchPointState], broken: Sequence[PatchPointState]) -> str:
    if any(state.essential for state in broken):
        return "A run here would be UNGUARDED: a patch point of the step or of the decision is missing."
    if broken:
        return (
            f"A run here is guarded, but {len(broken)} of {len(states)} targets are missing; the lines above say why."
        )
    return "A run here is guarded: every patch point is in place."


def _read_statuses(run: Path) -> list[Status]:
    """Read every status file of a run.

    Raises:
        PostmortemError: there is no status file, or one cannot be read; the message says which path to give instead.
    """
    if not os.path.isdir(run):
        raise PostmortemError(f"{run} is no directory; give the directory of one run, DIR/runs/RUN")
    files = sorted((run / "status").glob("rank*.json"))
    if not files:
        newest = "; give one of its runs/" if (run / "runs").is_dir() else ""
        raise PostmortemError(f"{run} holds no status files; they are written when a guarded run ends{newest}")
    return [read_record(Status, file) for file in files]


def _num_calls(target: str, statuses: Sequence[Status]) -> str:
    """Say how often the ranks called the target of a patch point: "12", or "8 to 12" if they differ."""
    calls = [status.points_fired.get(target, 0) for status in statuses]
    least, most = min(calls), max(calls)
    return str(most) if least == most else f"{least} to {most}"
