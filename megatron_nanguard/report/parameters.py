"""Which parameters had bad gradients."""

from __future__ import annotations

from collections import Counter

from megatron_nanguard.records.incident import Incident, MergedParameter
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.wording import count, counted, number, rank_list

SHOWN_PARAMETERS = 10
COLUMNS = ("parameter", "norm", "NaN", "Inf", "ranks")


def describe(incident: Incident) -> Block | None:
    """The first ten of those bad before the reduction; where there are none, of those bad after it."""
    local = [parameter for parameter in incident.parameters if parameter.where == "local"]
    reduced = [parameter for parameter in incident.parameters if parameter.where == "reduced"]
    shown, when = (local, "before") if local else (reduced, "after")
    if not shown:
        return None
    return Block(
        f"Bad gradients {when} the reduction: {counted(len(shown), 'parameter')}, nearest to the loss first",
        columns=COLUMNS,
        rows=tuple(_row(parameter) for parameter in shown[:SHOWN_PARAMETERS]),
        notes=_notes(incident, shown, reduced if local else []),
    )


def _row(parameter: MergedParameter) -> tuple[str, ...]:
    return (
        parameter.name,
        number(parameter.norm),
        count(parameter.nan_count),
        count(parameter.inf_count),
        rank_list(parameter.ranks, parameter.num_ranks),
    )


def _notes(incident: Incident, shown: list[MergedParameter], infected: list[MergedParameter]) -> tuple[str, ...]:
    notes = []
    if len(shown) > SHOWN_PARAMETERS:
        notes.append(f"... and {len(shown) - SHOWN_PARAMETERS} more")
    if infected:
        patterns = Counter(parameter.pattern for parameter in infected)
        told = ", ".join(f"{times} {pattern}" for pattern, times in patterns.items())
        notes.append(f"bad after the reduction: {counted(len(infected), 'parameter')} ({told})")
    if incident.parameters_truncated:
        notes.append(f"{incident.parameters_truncated} more names are in the files of the ranks only")
    if any(parameter.nan_count is None for parameter in shown[:SHOWN_PARAMETERS]):
        notes.append('"-": the reduction overwrote the values before they could be counted')
    return tuple(notes)
