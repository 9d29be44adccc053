"""The three sets of ranks."""

from __future__ import annotations

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.incident import Infected
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections import ranks
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import REPLICA_0, SETS
from tests.unit.report.factories import demo_rows, described, opened_incident


def test_empty_sets_read_as_none() -> None:
    assert ranks.describe(opened_incident()) == Block(
        "Ranks", rows=(("bad before the reduction", "none"), ("bad after it only", "none"), ("clean", "none"))
    )


def test_rows_make_a_picture() -> None:
    assert ranks.describe(opened_incident(rows=demo_rows())).grid is not None


def test_missing_ranks_have_a_line_of_their_own() -> None:
    assert ranks.describe(opened_incident(missing_ranks=(3, 6, 7))).rows[3] == ("no readable file", "3, 6, 7")


def test_where_every_local_gradient_was_finite_the_group_is_that_of_the_reduced_state() -> None:
    sets = RankSets((), (0, 1, 4, 5), (2, 3, 6, 7))
    after = opened_incident(kind=Kind.GRADIENT_AFTER_REDUCTION, ranks=sets, groups=(REPLICA_0,))

    assert ranks.describe(after).rows[:2] == (
        ("bad before the reduction", "none"),
        ("bad after it only", "0, 1, 4, 5: data-parallel replica 0: all TP, all PP"),
    )


def test_a_single_rank_is_not_named_twice() -> None:
    alone = RankGroup("dp", {"dp": (1,)}, "rank 3 (DP 1)", (3,))

    assert ranks.describe(opened_incident(ranks=RankSets((3,), (), ()), groups=(alone,))).rows[0][1] == "rank 3 (DP 1)"


def test_infected_ranks_that_share_a_way_are_told_together() -> None:
    way = ("data-parallel reduction", "data-parallel group of tp0 pp0", (0,))
    infected = (Infected(2, *way), Infected(6, "not known", "", ()), Infected(4, *way), Infected(3, *way))

    assert ranks.describe(opened_incident(ranks=SETS, infected=infected)).notes == (
        "infected 2-4 from 0 by data-parallel reduction (data-parallel group of tp0 pp0)",
        "infected 6 by a way that is not known",
    )


def test_many_ways_of_infection_are_counted() -> None:
    infected = tuple(Infected(rank, "data-parallel reduction", f"group {rank}", (0,)) for rank in range(1, 12))

    told = described(ranks.describe, opened_incident(infected=infected)).notes

    assert len(told) == 9
    assert told[-1] == "... and 3 more paths of infection"


def test_with_an_origin_the_infection_is_told_elsewhere() -> None:
    infected = (Infected(2, "data-parallel reduction", "a group", (0,)),)

    assert ranks.describe(opened_incident(infected=infected, origin=(origin(),))).notes == ()
