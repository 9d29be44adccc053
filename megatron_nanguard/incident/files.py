"""The merged incident, and the sentence for the log."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.diagnosis.experiments import BEARING_OPTIONS
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.incident.outcome import Outcome
from megatron_nanguard.megatron_api import host
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME, state_cause
from megatron_nanguard.postmortem.directory import RunDirectory
from megatron_nanguard.postmortem.merging import Exchanged
from megatron_nanguard.postmortem.reading import MERGED_NAME, earlier_incidents, merge_directory, read_traces
from megatron_nanguard.postmortem.summary import summarize
from megatron_nanguard.records.incident import Incident, PolicyOutcome


def merge_files(
    run: RunDirectory, incident: str, outcome: Outcome, policy: PolicyOutcome
) -> tuple[Incident | None, Path | None]:
    """Read what the ranks wrote, merge it and write ``incident.json``. Runs on one rank.

    Returns:
        The incident and its file; None where the directory holds nothing or cannot be written.
    """
    exchanged = Exchanged(outcome.ranks, outcome.groups, outcome.infected_groups)
    try:
        merged = merge_directory(run.path / incident, exchanged=exchanged, policy=policy)
    except PostmortemError:
        # Nothing could be written here, which was said already; what was exchanged is known all the same.
        return None, None
    # First without the verdict: what was merged must not be lost to a rule that fails.
    path = run.write(f"{incident}/{MERGED_NAME}", merged)
    directory = run.path / incident
    concluded = conclude(
        merged, read_traces(directory), tuple(earlier_incidents(directory)), host.switched_on(BEARING_OPTIONS)
    )
    run.write(f"{incident}/{MERGED_NAME}", concluded)
    bundle = directory / BUNDLE_NAME
    if concluded.causes and bundle.is_dir():
        state_cause(bundle, concluded.causes[0].cause)
    return concluded, path


def sentence(step: int, outcome: Outcome, merged: Incident | None) -> str:
    """What the log says: who was bad, where it began, and what most likely did it."""
    said = [summarize(step, outcome.kind, outcome.ranks, outcome.groups)]
    if merged is not None and merged.origin:
        first = merged.origin[0]
        where = "" if first.microbatch is None else f" of micro-batch {first.microbatch}"
        line = f" at {first.source_line}" if first.source_line else ""
        module = f" in {first.module}" if first.module else ""
        others = f", and {len(merged.origin) - 1} more" if len(merged.origin) > 1 else ""
        what = f"{first.operator}{module} -> {first.pattern}{line}"
        said.append(f"It began on rank {first.rank}, {first.phase}{where}: {what}{others}.")
    if merged is not None and merged.causes:
        likeliest = merged.causes[0]
        is_open = likeliest.cause == "undecided"
        said.append(
            "The cause is undecided." if is_open else f"Most likely: {likeliest.cause} ({likeliest.confidence:.0%})."
        )
    return " ".join(said)
