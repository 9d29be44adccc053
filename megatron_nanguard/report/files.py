"""Where the evidence is."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block


def describe(incident: Incident, directory: Path) -> Block:
    """The merged file, and the files of the ranks.

    Args:
        incident: the merged incident.
        directory: where its files are.
    """
    rows = [("merged", str(directory / "incident.json"))]
    if incident.files:
        more = f" and {len(incident.files) - 1} more" if len(incident.files) > 1 else ""
        rows.append(("per rank", f"{directory / incident.files[0]}{more}"))
    return Block("Files", rows=tuple(rows))
