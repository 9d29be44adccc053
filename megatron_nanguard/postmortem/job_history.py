"""The run and the job of an incident: its arguments, and earlier incidents of the run and of earlier attempts.

A job that starts again under the same `--nanguard-dir` leaves one run per attempt; names of runs begin with their start
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.search import MERGED_NAME, incidents_in, order_of
from megatron_nanguard.records.fingerprint import FINGERPRINT_NAME, Fingerprint
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import read_record

LOOKED_BACK: Final = 16
"""Earlier incidents that are read, and earlier attempts that are looked for."""

NO_PART_OF_THE_JOB: Final = (
    *("rank", "local_rank", "load", "iteration", "curr_iteration", "consumed_", "skipped_train_samples"),
    *("num_floating_point_operations_so_far", "exit_", "log_", "tensorboard_", "wandb_", "one_logger_", "nanguard"),
)
"""How arguments begin that differ between two attempts of one job: where it stands, and how one looks at it."""


def earlier_incidents(directory: Path) -> Iterator[Incident]:
    """The last few merged incidents before one, in order; what cannot be read is left out.

    Args:
        directory: of the incident, in that of its run.
    """
    try:
        before = list(_before(directory.absolute()))
    except OSError:
        return
    for path in before[-LOOKED_BACK:]:
        try:
            yield read_record(Incident, path / MERGED_NAME)
        except PostmortemError:
            continue


def _before(directory: Path) -> Iterator[Path]:
    run = directory.parent.parent
    for attempt in _attempts_before(run):
        yield from reversed(incidents_in(attempt))
    mine = order_of(directory)
    yield from (incident for incident in reversed(incidents_in(run)) if order_of(incident) < mine)


def _attempts_before(run: Path) -> list[Path]:
    """The last few runs of the same job before this one; none where it is not known what the job is."""
    try:
        mine = read_record(Fingerprint, run / FINGERPRINT_NAME)
    except PostmortemError:
        return []
    before = sorted(path for path in run.parent.iterdir() if path.name < run.name)
    return [path for path in before[-LOOKED_BACK:] if _is_attempt(path, mine)]


def is_same_job(mine: Fingerprint, other: Fingerprint) -> bool:
    """Whether two runs have equal sizes and arguments; of a trainer without arguments nothing is known."""
    is_known = mine.world_size == other.world_size and bool(mine.arguments)
    return is_known and of_the_job(mine.arguments) == of_the_job(other.arguments)


def of_the_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are the same in all attempts of one job."""
    return {name: value for name, value in arguments.items() if not name.startswith(NO_PART_OF_THE_JOB)}


def _is_attempt(run: Path, mine: Fingerprint) -> bool:
    try:
        return is_same_job(mine, read_record(Fingerprint, run / FINGERPRINT_NAME))
    except PostmortemError:
        return False


def arguments_of_run(directory: Path) -> dict[str, str]:
    """The host's arguments as text; none where the run did not leave them, or they cannot be read.

    Args:
        directory: of the incident, in that of its run.
    """
    try:
        return read_record(Fingerprint, directory.absolute().parent.parent / FINGERPRINT_NAME).arguments
    except PostmortemError:
        return {}
