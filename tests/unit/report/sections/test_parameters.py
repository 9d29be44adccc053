"""Bad parameters, layer by layer."""

from __future__ import annotations

import math
from dataclasses import replace

from megatron_nanguard.records.incident import MergedParameter
from megatron_nanguard.report.sections import parameters
from megatron_nanguard.report.sections.parameters import full_table
from tests.unit.factories import incident
from tests.unit.report.factories import described, opened_incident
from tests.unit.report.html.factories import demo_incident

SUMMED = (
    "NaN and Inf count elements, summed over the ranks: before the reduction where their values are still known, else "
    "after it; nearest to the loss first"
)
DASH = '"-": the reduction overwrote the values before they could be counted'


def parameter(name: str, where: str = "local", nan_count: int | None = 3) -> MergedParameter:
    assert where in ("local", "reduced")
    return MergedParameter(name, where, "nan", math.nan, nan_count, 0, (4, 5), 2, ("tp0pp1dp0", "tp1pp1dp0"))  # type: ignore[arg-type]


def test_without_a_bad_parameter_there_is_no_section() -> None:
    assert parameters.describe(opened_incident()) is None


def test_a_layer_is_named_once_above_its_parameters_from_the_loss_backwards() -> None:
    names = ("decoder.layers.2.mlp.w", "decoder.layers.3.mlp.w", "decoder.layers.3.mlp.b", "output_layer.weight")

    block = described(parameters.describe, opened_incident(parameters=tuple(map(parameter, names))))

    assert block.columns == ("parameter", "bad before on ranks", "bad after on ranks", "values", "NaN", "Inf")
    assert block.rows == (
        ("output_layer", "", "", "", "", ""),
        ("  weight", "4, 5", "-", "NaN", "3", "0"),
        ("decoder.layers.3", "", "", "", "", ""),
        ("  mlp.w", "4, 5", "-", "NaN", "3", "0"),
        ("  mlp.b", "4, 5", "-", "NaN", "3", "0"),
        ("decoder.layers.2", "", "", "", "", ""),
        ("  mlp.w", "4, 5", "-", "NaN", "3", "0"),
    )
    assert block.notes == (SUMMED,)


def test_one_row_shows_before_and_after_with_the_known_counts() -> None:
    before, after = parameter("w", nan_count=None), replace(parameter("w", "reduced", 7), ranks=(4, 6))

    block = described(parameters.describe, opened_incident(parameters=(before, after)))

    assert block.title == "Bad gradients by parameter: 1 parameter before the reduction, 1 after it"
    assert block.rows[1] == ("  w", "4, 5", "4, 6", "NaN", "7", "0")


def test_the_norm_is_shown_where_every_element_is_finite() -> None:
    large = replace(parameter("w"), pattern="finite", norm=3e38, nan_count=0)
    assert described(parameters.describe, opened_incident(parameters=(large,))).rows[1][3] == "finite, norm 3e+38"


def test_the_first_twenty_are_shown_and_the_rest_counted_by_layer() -> None:
    local = tuple(parameter(f"decoder.layers.{layer}.{name}") for layer in range(35, 0, -1) for name in "ab")

    block = described(parameters.describe, opened_incident(parameters=local))

    assert block.title == "Bad gradients by parameter: 70 parameters before the reduction, 0 after it"
    assert len([row for row in block.rows if row[1]]) == 20
    assert block.notes == (
        "... and 50 more: decoder.layers.25 (2), decoder.layers.24 (2), decoder.layers.23 (2), decoder.layers.22 (2), "
        "decoder.layers.21 (2), decoder.layers.20 (2), decoder.layers.19 (2), decoder.layers.18 (2), 17 more layers",
        SUMMED,
    )


def test_an_unknown_count_is_a_dash() -> None:
    block = described(parameters.describe, opened_incident(parameters=(parameter("head.w", "reduced", None),)))

    assert block.rows[1] == ("  w", "-", "4, 5", "NaN", "-", "0")
    assert block.notes == (SUMMED, DASH)


def test_names_left_out_of_the_incident_are_counted() -> None:
    block = described(parameters.describe, opened_incident(parameters=(parameter("w"),), parameters_truncated=40))

    assert block.notes == (SUMMED, "40 more names are in the files of the ranks only")


def test_every_listed_parameter_has_one_row() -> None:
    listed = demo_incident().parameters
    after = replace(listed[0], where="reduced", nan_count=None, ranks=(0, 1, 2), num_ranks=40)
    alone = replace(after, name="output_layer.weight", ranks=(4,), num_ranks=1)

    table = full_table(incident(parameters=(listed[0], after, alone), parameters_truncated=7))

    assert table is not None
    name = "decoder.layers.3.mlp.linear_fc1.weight"
    assert table.rows == (
        ("output_layer.weight", "-", "4", "NaN", "-", "0"),
        (name, "4, 5", "0-2, ... (40 ranks)", "NaN", "3", "0"),
    )
    assert table.title == "Bad gradients by parameter: 1 parameter before the reduction, 2 after it"
    assert table.notes[1] == "7 more names are in the files of the ranks only"
    assert len(table.notes) == 3


def test_without_a_bad_parameter_there_is_no_table() -> None:
    assert full_table(incident()) is None
