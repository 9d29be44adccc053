"""All bad parameters as one table."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.report.html.parameters import parameter_table
from tests.unit.factories import incident
from tests.unit.report.html.factories import demo_incident


def test_every_listed_parameter_has_one_row() -> None:
    listed = demo_incident().parameters
    after = replace(listed[0], where="reduced", nan_count=None, ranks=(0, 1, 2), num_ranks=40)
    alone = replace(after, name="output_layer.weight", ranks=(4,), num_ranks=1)

    table = parameter_table(incident(parameters=(listed[0], after, alone), parameters_truncated=7))

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
    assert parameter_table(incident()) is None
