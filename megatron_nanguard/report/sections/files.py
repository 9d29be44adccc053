"""Where the evidence is."""

from __future__ import annotations

from megatron_nanguard.postmortem.search import MERGED_NAME
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident


def describe(opened: OpenedIncident) -> Block:
    """The file of all ranks together, and the files of the ranks."""
    incident = opened.incident
    rows: list[tuple[str, str]] = [(phrase("directory"), str(opened.home))]
    # Nobody lived to write the merged file where it is not known what was done.
    if incident.policy.action != "unknown":
        rows.append((phrase("all ranks"), MERGED_NAME))
    if incident.files:
        first, more = incident.files[0], len(incident.files) - 1
        rows.append((phrase("each rank"), phrase("{file} and {more} more", file=first, more=more) if more else first))
    return Block(phrase("Files"), rows=tuple(rows))
