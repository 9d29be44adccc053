"""The merged incident, and the sentence for the log."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.incident.outcome import Outcome
from megatron_nanguard.postmortem.directory import RunDirectory
from megatron_nanguard.postmortem.merging import Exchanged
from megatron_nanguard.postmortem.reading import MERGED_NAME, merge_directory
from megatron_nanguard.postmortem.summary import summarize
from megatron_nanguard.records.incident import PolicyOutcome


def merge_files(
    run: RunDirectory, incident: str, step: int, outcome: Outcome, policy: PolicyOutcome
) -> tuple[str, Path | None]:
    """Read what the ranks wrote, merge it and write ``incident.json``; the summary and the file. Runs on one rank."""
    exchanged = Exchanged(outcome.ranks, outcome.groups, outcome.infected_groups)
    try:
        merged = merge_directory(run.path / incident, exchanged=exchanged, policy=policy)
    except PostmortemError:
        # Nothing could be written here, which was said already; what was exchanged is known all the same.
        return summarize(step, outcome.kind, outcome.ranks, outcome.groups), None
    return merged.summary, run.write(f"{incident}/{MERGED_NAME}", merged)
