"""Ranks that were bad before the reduction because bad values were sent to them."""

from __future__ import annotations

from megatron_nanguard.diagnosis.received import received_before
from megatron_nanguard.records.incident import Infected
from megatron_nanguard.records.postmortem import RankSets
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import incident


def test_ranks_that_were_sent_bad_values_are_told_from_the_origin() -> None:
    infected = (Infected(4, "TP all-reduce", "g", (5,)), Infected(7, "DP gradient all-reduce", "h", (5,)))
    known = incident(origin=(origin(),), infected=infected, ranks=RankSets((4, 5), (7,), ()))

    assert received_before(known) == "Rank 4 received bad values before it, by other communication."


def test_without_an_origin_nobody_is_known_to_have_received() -> None:
    assert received_before(incident(infected=(Infected(4, "x", "g", (5,)),))) == ""
    assert received_before(incident(origin=(origin(),))) == ""
