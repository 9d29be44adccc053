"""Which parameters had bad gradients: one row each, layer by layer, from the loss backwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from megatron_nanguard.records.incident import Incident, MergedParameter
from megatron_nanguard.records.phrase import LISTED, joined, phrase, rank_list
from megatron_nanguard.records.run.parameters import depth_of, layer_of
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.formatting import count, counted, number, pattern_words
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_PARAMETERS: Final = 20
SHOWN_LAYERS: Final = 8
COLUMNS: Final = (
    phrase("parameter"),
    phrase("bad before on ranks"),
    phrase("bad after on ranks"),
    phrase("values"),
    "NaN",
    "Inf",
)
TITLE: Final = phrase("Bad gradients by parameter: {before} before the reduction, {after} after it")
SUMMED: Final = phrase(
    "NaN and Inf count elements, summed over the ranks: before the reduction where their values are still known, else "
    "after it; nearest to the loss first"
)
NOWHERE: Final = "-"


@dataclass(frozen=True)
class ParameterRow:
    """One parameter before and after the reduction; at least one of them was bad."""

    before: MergedParameter | None
    after: MergedParameter | None

    @property
    def name(self) -> str:
        """Global name."""
        return self._first.name

    @property
    def _first(self) -> MergedParameter:
        """The record from before the reduction; if there is none, the one from after it."""
        first = self.before or self.after
        assert first is not None
        return first

    def cells(self) -> tuple[str, ...]:
        """Return all cells but the name; counts unknown before the reduction are taken from after it."""
        counts = next((one for one in (self.before, self.after) if one and one.nan_count is not None), self._first)
        return (
            _ranks(self.before),
            _ranks(self.after),
            _values(self._first),
            count(counts.nan_count),
            count(counts.inf_count),
        )


def describe(opened: OpenedIncident) -> Block | None:
    """Show the first parameters layer by layer, and count the others by layer."""
    incident = opened.incident
    everything = _bad_parameters(incident)
    rest = everything[SHOWN_PARAMETERS:]
    more = (phrase("... and {number} more: {layers}", number=len(rest), layers=_by_layer(rest)),) if rest else ()
    return _block(incident, everything, _rows(everything[:SHOWN_PARAMETERS]), more)


def full_table(incident: Incident) -> Block | None:
    """List every bad parameter of the incident in a row of its own, by its full name; None where none is bad."""
    everything = _bad_parameters(incident)
    return _block(incident, everything, ((parameter.name, *parameter.cells()) for parameter in everything))


def _block(
    incident: Incident, everything: Sequence[ParameterRow], rows: Iterable[tuple[str, ...]], more: tuple[str, ...] = ()
) -> Block | None:
    """Head the rows with the numbers of parameters before and after the reduction; None where none was bad."""
    places = Counter(parameter.where for parameter in incident.parameters)
    title = TITLE.format(before=counted(places["local"], "parameter"), after=places["reduced"])
    notes = (*more, *_notes(incident, everything))
    return Block(title, columns=COLUMNS, rows=tuple(rows), notes=notes) if everything else None


def _bad_parameters(incident: Incident) -> list[ParameterRow]:
    """Return every parameter that the incident lists, once, in the order of the backward pass."""
    before = {one.name: one for one in incident.parameters if one.where == "local"}
    after = {one.name: one for one in incident.parameters if one.where == "reduced"}
    listed = [ParameterRow(before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))]
    return sorted(listed, key=lambda parameter: -depth_of(parameter.name))


def _notes(incident: Incident, everything: Sequence[ParameterRow]) -> Iterator[str]:
    """Say how to read the table, and what is not in it."""
    yield SUMMED
    if incident.parameters_truncated:
        yield phrase("{count} more names are in the files of the ranks only", count=incident.parameters_truncated)
    if any(NOWHERE in parameter.cells()[-2:] for parameter in everything):
        yield phrase('"-": the reduction overwrote the values before they could be counted')


def _rows(parameters: Sequence[ParameterRow]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the parameters, below a row that names their layer."""
    previous = None
    for parameter in parameters:
        layer = layer_of(parameter.name)
        if layer != previous:
            yield (layer, *[""] * (len(COLUMNS) - 1))
        yield "  " + parameter.name.removeprefix(f"{layer}."), *parameter.cells()
        previous = layer


def _ranks(parameter: MergedParameter | None) -> str:
    return rank_list(parameter.ranks, parameter.num_ranks) if parameter else NOWHERE


def _values(parameter: MergedParameter) -> str:
    """Write the kind of bad values, or the norm where only the norm was bad and every element is finite."""
    words = pattern_words(parameter.pattern)
    if parameter.pattern != "finite":
        return words
    return phrase("{values}, norm {norm}", values=words, norm=number(parameter.norm))


def _by_layer(parameters: Sequence[ParameterRow]) -> str:
    """Write the layers with the number of their parameters: "decoder.layers.1 (12), embedding (2)"."""
    layers = Counter(layer_of(parameter.name) for parameter in parameters)
    named = [f"{layer} ({times})" for layer, times in list(layers.items())[:SHOWN_LAYERS]]
    more = len(layers) - SHOWN_LAYERS
    return joined(LISTED, [*named, counted(more, "more layer")] if more > 0 else named)
