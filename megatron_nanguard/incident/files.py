"""The merged incident, and the sentence for the log."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.incident.outcome import Outcome
from megatron_nanguard.postmortem.directory import RunDirectory
from megatron_nanguard.postmortem.merging import Exchanged
from megatron_nanguard.postmortem.reading import MERGED_NAME, merge_directory
from megatron_nanguard.records.incident import Incident, PolicyOutcome


def merge_files(
    run: RunDirectory, incident: str, outcome: Outcome, policy: PolicyOutcome
) -> tuple[Incident, Path | None]:
    """Read what the ranks wrote, merge it and write ``incident.json``. Runs on one rank."""
    exchanged = Exchanged(outcome.ranks, outcome.groups, outcome.infected_groups)
    merged = merge_directory(run.path / incident, exchanged=exchanged, policy=policy)
    return merged, run.write(f"{incident}/{MERGED_NAME}", merged)
