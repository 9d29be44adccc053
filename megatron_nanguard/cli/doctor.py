"""`nanguard doctor`: which patch points work in this environment, in a run how often each was called, what can be read
of the hardware."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import click

from megatron_nanguard.cli import say
from megatron_nanguard.postmortem.statuses import FiredCounts, read_statuses
from megatron_nanguard.records.doctor import PatchPointState, SourceState
from megatron_nanguard.version import __version__


@click.command("doctor")
@click.argument("run_dir", metavar="[RUN_DIR]", required=False, type=click.Path(path_type=Path))
def command(run_dir: Path | None) -> int:
    """Resolve every patch point in this environment: active, not called by this release, or why not and what is lost.

    With RUN_DIR, the directory of one run, also how often each was called there. Exit code 1 when a run would be
    unguarded.

    \b
    Examples:
      nanguard doctor
      nanguard doctor nanguard/runs/20260101T120000Z-ab12
    """
    counts = None if run_dir is None else read_statuses(run_dir)
    say(f"megatron-nanguard {__version__}, Python {sys.version.split()[0]}")
    for package in ("torch", "megatron-core", "torch-npu", "transformer-engine"):
        say(f"{package} {_version(package)}")
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("patch points can only be resolved where torch is installed, beside Megatron")
    findings = _survey()
    say()
    for finding in findings:
        _print(finding, counts)
    if counts is not None:
        say(f"\n{counts.num_ranks} ranks left a status file; called: times per rank, least to most")
        for note in counts.notes:
            say(f"note: {note}")
    say("\nwhat the hardware tells here, for the verdict on an incident:")
    for source in _sources():
        say(f"{'ok ' if source.tells else '-- '} {source.name:26} {source.words}")
    broken = [finding for finding in findings if not finding.works]
    say(f"\n{_verdict(findings, broken)}")
    return int(any(finding.essential for finding in broken))


def _survey() -> Sequence[PatchPointState]:
    """Hooks of our own, so that the answer is the same with NANGUARD=0."""
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


def _sources() -> Sequence[SourceState]:
    from megatron_nanguard.health.available_sources import list_sources

    return list_sources()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _print(finding: PatchPointState, counts: FiredCounts | None) -> None:
    mark = "ok " if finding.works else "NO "
    called = "" if counts is None else f"  called {counts.words(finding.target)}"
    say(f"{mark} {finding.point:26} {finding.words}{called}")
    say(f"      {finding.target}")


def _verdict(findings: Sequence[PatchPointState], broken: Sequence[PatchPointState]) -> str:
    if any(finding.essential for finding in broken):
        return "A run here would be UNGUARDED: a patch point of the step or of the decision is missing."
    if broken:
        return f"A run here is guarded; {len(broken)} of {len(findings)} targets are missing, see what is lost."
    return "A run here is guarded: every patch point is in place."
