"""All bad parameters as one table that can be searched."""

from __future__ import annotations

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections.parameters import COLUMNS, bad_parameters, notes_on, title_of


def parameter_table(incident: Incident) -> Block | None:
    """Every parameter that the incident lists; None where none is bad."""
    everything = bad_parameters(incident)
    if not everything:
        return None
    return Block(
        title_of(incident),
        columns=COLUMNS,
        rows=tuple((parameter.name, *parameter.cells()) for parameter in everything),
        notes=tuple(notes_on(incident, everything)),
    )
