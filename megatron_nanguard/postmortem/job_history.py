"""Read the arguments of a run and its earlier incidents, including those of earlier attempts of the same job.

A job that is started again with the same `--nanguard-dir` leaves one run per attempt; the name of a run begins with its
start time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.search import MERGED_NAME, incidents_in, step_and_number
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.run.fingerprint import FINGERPRINT_NAME, Fingerprint

NUM_EARLIER: Final = 16
"""How many earlier incidents are read, and how many earlier runs are looked at."""

ATTEMPT_ARGUMENTS: Final = (
    *("rank", "local_rank", "load", "iteration", "curr_iteration", "consumed_", "skipped_train_samples"),
    *("num_floating_point_operations_so_far", "exit_", "log_", "tensorboard_", "wandb_", "one_logger_", "nanguard"),
)
"""Beginnings of the arguments that may differ between attempts of one job: progress, logging and our own."""


def arguments_of_run(directory: Path) -> dict[str, str]:
    """Read the trainer's arguments as text; none if the fingerprint of the run is missing or cannot be read.

    Args:
        directory: directory of an incident, inside the directory of its run.
    """
    fingerprint = fingerprint_of(directory.absolute().parent.parent)
    return fingerprint.arguments if fingerprint else {}


def earlier_incidents(directory: Path) -> Iterator[Incident]:
    """Read the last few merged incidents before this one, oldest first; skip those that cannot be read.

    Args:
        directory: directory of this incident, inside the directory of its run.
    """
    try:
        earlier = list(_earlier_directories(directory.absolute()))
    except OSError:
        return
    for path in earlier[-NUM_EARLIER:]:
        try:
            yield read_record(Incident, path / MERGED_NAME)
        except PostmortemError:
            continue


def is_same_job(first: Fingerprint, second: Fingerprint) -> bool:
    """Whether two runs have the same world size and job arguments; False for a trainer that records no arguments."""
    is_known = first.world_size == second.world_size and bool(first.arguments)
    return is_known and job_arguments(first.arguments) == job_arguments(second.arguments)


def job_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    """Select the arguments that are the same in all attempts of one job."""
    return {name: value for name, value in arguments.items() if not name.startswith(ATTEMPT_ARGUMENTS)}


def _earlier_directories(directory: Path) -> Iterator[Path]:
    run = directory.parent.parent
    for attempt in _earlier_attempts(run):
        yield from reversed(incidents_in(attempt))
    this = step_and_number(directory)
    yield from (incident for incident in reversed(incidents_in(run)) if step_and_number(incident) < this)


def _earlier_attempts(run: Path) -> list[Path]:
    """List the last few runs of the same job before this one; none if this run has no readable fingerprint."""
    fingerprint = fingerprint_of(run)
    if fingerprint is None:
        return []
    earlier = sorted(path for path in run.parent.iterdir() if path.name < run.name)[-NUM_EARLIER:]
    return [path for path in earlier if (other := fingerprint_of(path)) and is_same_job(fingerprint, other)]


def fingerprint_of(run: Path) -> Fingerprint | None:
    try:
        return read_record(Fingerprint, run / FINGERPRINT_NAME)
    except PostmortemError:
        return None
