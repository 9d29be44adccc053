"""Where the evidence is, and how to run the failing call again."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.postmortem.bundles import BUNDLE_NAME, CALL_NAME
from megatron_nanguard.postmortem.reading import MERGED_NAME
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block


def describe(incident: Incident, directory: Path) -> Block:
    """The merged file, the files of the ranks, and the reproduction where there is one.

    Args:
        incident: the merged incident.
        directory: where its files are.
    """
    # Nobody lived to write the merged file where it is not known what was done.
    rows = [("merged", str(directory / MERGED_NAME))] if incident.policy.action != "unknown" else []
    if incident.files:
        more = f" and {len(incident.files) - 1} more" if len(incident.files) > 1 else ""
        rows.append(("per rank", f"{directory / incident.files[0]}{more}"))
    if (directory / BUNDLE_NAME / CALL_NAME).exists():
        rows.append(("reproduce", f"python {directory / BUNDLE_NAME / 'repro.py'}"))
    return Block("Files", rows=tuple(rows))
