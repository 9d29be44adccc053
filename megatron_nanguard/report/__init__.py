"""What is said of an incident: sections in the order they are read.

A section is one file with `describe(incident)`, a block or None when it has nothing to say; a renderer lays blocks out
and knows nothing of incidents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report import (
    advice,
    causes,
    files,
    happened,
    infection,
    losses,
    notes,
    origins,
    parameters,
    policy,
    ranks,
    replay,
)
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.text import render

Section = Callable[[Incident], Block | None]

SECTIONS: tuple[Section, ...] = (
    happened.describe,
    origins.describe,
    causes.describe,
    advice.describe,
    ranks.describe,
    infection.describe,
    parameters.describe,
    losses.describe,
    replay.describe,
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
