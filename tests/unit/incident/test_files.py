"""The sentence of an incident in the log."""

from __future__ import annotations

import pytest

from megatron_nanguard.incident.files import sentence
from megatron_nanguard.incident.outcome import Outcome
from megatron_nanguard.records.incident import Cause, Origin
from megatron_nanguard.records.postmortem import Kind, RankSets
from tests.unit.factories import incident

OUTCOME = Outcome(Kind.GRADIENT_BEFORE_REDUCTION, RankSets((0,), (), ()), (), (), ())
ORIGIN = Origin(0, "tp0pp0dp0", 2, "forward", "decoder.layers.1.mlp", "log", "0", "nan", "gelu.py:7 in act", ())
WHERE = (
    "Step 3: gradients of rank 0 were not finite before the data-parallel reduction. It began on rank 0, forward of "
    "micro-batch 2: log in decoder.layers.1.mlp -> nan at gelu.py:7 in act."
)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (Cause("numerics", 0.86, (), (), (), ""), "Most likely: numerics (86%)."),
        (Cause("undecided", 0.7, (), (), (), ""), "The cause is undecided."),
    ],
)
def test_it_says_who_where_and_why(cause: Cause, words: str) -> None:
    assert sentence(3, OUTCOME, incident(origin=(ORIGIN,), causes=(cause,))) == f"{WHERE} {words}"


def test_without_a_merged_incident_it_says_who() -> None:
    assert sentence(3, OUTCOME, None) == WHERE.partition(" It began")[0]
