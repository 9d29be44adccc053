"""A cause in one line, and the advice on known patterns."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.texts import meaning
from megatron_nanguard.records.trace import TensorFacts
from tests.unit.diagnosis.factories import origin


def test_a_cause_of_another_version_has_no_meaning() -> None:
    assert meaning("numerics").startswith("Finite inputs leave the range")
    assert meaning("a cause of another version") == ""


def test_an_operator_that_stores_a_nan_it_is_passed_is_said_to_be_right() -> None:
    stored = origin(operator="index_put_", inputs=(TensorFacts("values", (), "number", "nan"),))
    of_function = replace(stored, function_line="model.py:9 in Poisoned.backward")

    assert meaning("operator", (of_function,)) == (
        "Poisoned.backward passes a plain number that is NaN (index_put_, model.py:9); index_put_ itself is correct."
    )
    assert meaning("operator", (stored,)).startswith("f passes a plain number that is NaN (index_put_, model.py:7)")
    assert meaning("operator", (replace(stored, source_line=None),)).startswith("The code passes")
    assert meaning("operator", (origin(),)) == meaning("operator")
    assert meaning("numerics", (stored,)) == meaning("numerics")
