"""What the command line of the captured run was, and what is different in this job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.postmortem.job_history import of_the_job
from megatron_nanguard.records.fingerprint import FINGERPRINT_NAME, Fingerprint
from megatron_nanguard.records.json.record_file import read_record


def command_line(incident: Path, given: Sequence[str]) -> list[str]:
    """The script to run and its arguments.

    Args:
        incident: directory of the incident.
        given: a script with all its arguments; or arguments to add to those of the run, where the last one wins.
    Raises:
        PostmortemError: the run's command line is not known here.
    """
    if given and not given[0].startswith("-"):
        return list(given)
    recorded = _fingerprint(incident).command_line
    if not recorded:
        raise PostmortemError(f"{_path(incident)} has no command line; give the script and its arguments after DIR")
    if not Path(recorded[0]).exists():
        raise PostmortemError(
            f"the run's script {recorded[0]} is not here; go to the directory it was started in, or give a script and "
            "its arguments after DIR"
        )
    return [*recorded, *given]


def changed_arguments(incident: Path) -> Iterator[str]:
    """One line per argument that is not what it was in the run; none where either is not known."""
    mine = host_program.arguments()
    if mine is None or not _path(incident).exists():
        return
    before, now = of_the_job(_fingerprint(incident).arguments), of_the_job(vars(mine))
    for name in sorted(before.keys() | now.keys()):
        seen, was = str(now.get(name)), before.get(name)
        if seen != was:
            yield f"argument {name} is {seen} here, it was {was}"


def _path(incident: Path) -> Path:
    return incident.absolute().parents[1] / FINGERPRINT_NAME


def _fingerprint(incident: Path) -> Fingerprint:
    path = _path(incident)
    if not path.exists():
        raise PostmortemError(f"{path} is not there; give the script and its arguments after DIR")
    return read_record(Fingerprint, path)
