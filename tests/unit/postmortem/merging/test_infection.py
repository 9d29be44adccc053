"""By which communication a rank was infected."""

from __future__ import annotations

from megatron_nanguard.postmortem.merging.infection import LISTED_INFECTED, trace_infection
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.records.incident import Infected
from megatron_nanguard.records.postmortem import RankSets
from tests.unit.factories import SIZES, place

PLACES = {rank: place(rank) for rank in range(8)}


def one(bad: int, infected: int) -> Infected:
    found, _ = trace_infection(RankSets((bad,), (infected,), ()), PLACES, SIZES)
    return found[0]


def test_a_replica_is_infected_by_the_data_parallel_reduction() -> None:
    assert one(bad=1, infected=3) == Infected(3, "data-parallel reduction", "data-parallel group of tp1 pp0", (1,))


def test_a_tensor_parallel_neighbour_is_infected_in_finalize() -> None:
    assert one(bad=4, infected=5) == Infected(
        5, "gradient all-reduce over tensor parallel ranks", "pipeline stage 1", (4,)
    )


def test_the_other_end_of_the_pipeline_is_infected_by_tied_embeddings() -> None:
    assert one(bad=0, infected=4) == Infected(
        4, "gradient all-reduce of tied embeddings", "first and last stage of tp0", (0,)
    )


def test_a_rank_without_a_shared_group_has_no_known_source_of_infection() -> None:
    assert one(bad=0, infected=7) == Infected(7, "not known", "", ())


def test_no_rank_bad_before_means_no_infection() -> None:
    assert trace_infection(RankSets((), (2,), (0, 1)), PLACES, SIZES) == ((), ())


def test_a_rank_whose_place_is_not_known_is_left_out() -> None:
    assert trace_infection(RankSets((0,), (2,), ()), {0: place(0)}, SIZES) == ((), ())


def test_a_long_list_is_cut_and_counted() -> None:
    places = {rank: Coordinates(rank, 0, 0, 0, rank, 0, 0, rank) for rank in range(100)}

    found, notes = trace_infection(RankSets((0,), tuple(range(1, 100)), ()), places, SIZES)

    assert len(found) == LISTED_INFECTED
    assert notes == ("35 more infected ranks, see ranks.bad_after_only",)
