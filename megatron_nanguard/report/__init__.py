"""What is said of an incident: sections in the order they are read.

A section is one file with `describe(incident)`, a block or None when it has nothing to say; a renderer lays blocks out
and knows nothing of incidents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report import files, happened, losses, notes, parameters, policy, ranks
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.text import render

Section = Callable[[Incident], Block | None]

SECTIONS: tuple[Section, ...] = (
    happened.describe,
    ranks.describe,
    parameters.describe,
    losses.describe,
    policy.describe,
    notes.describe,
)


def report_text(incident: Incident, directory: Path) -> str:
    """Print one incident as plain text.

    Args:
        incident: the merged incident.
        directory: where its files are.
    """
    blocks = [section(incident) for section in SECTIONS]
    blocks.append(files.describe(incident, directory))
    return render([block for block in blocks if block is not None])
