"""The three sets of ranks, and the grid of the parallel layout."""

from __future__ import annotations

from megatron_nanguard.postmortem.rank_table import RankState
from megatron_nanguard.records.coordinates import ParallelSizes, RankGroup
from megatron_nanguard.records.incident import Infected
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.report.blocks import Block, Grid, GridMark, Tone
from megatron_nanguard.report.sections import ranks
from megatron_nanguard.report.sections.ranks import parallel_grid
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import REPLICA_0, SETS, SIZES
from tests.unit.report.factories import demo_rows, described, opened_incident, row


def test_empty_sets_read_as_none() -> None:
    assert ranks.describe(opened_incident()) == Block(
        "Ranks", rows=(("bad before the reduction", "none"), ("bad after it only", "none"), ("clean", "none"))
    )


def test_with_rows_there_is_a_grid() -> None:
    assert ranks.describe(opened_incident(rows=demo_rows())).grid is not None


def test_missing_ranks_have_a_line_of_their_own() -> None:
    assert ranks.describe(opened_incident(missing_ranks=(3, 6, 7))).rows[3] == ("no readable file", "3, 6, 7")


def test_if_every_local_gradient_was_finite_the_group_comes_from_the_reduced_state() -> None:
    sets = RankSets((), (0, 1, 4, 5), (2, 3, 6, 7))
    after = opened_incident(kind=Kind.GRADIENT_AFTER_REDUCTION, ranks=sets, groups=(REPLICA_0,))

    assert ranks.describe(after).rows[:2] == (
        ("bad before the reduction", "none"),
        ("bad after it only", "0, 1, 4, 5: data-parallel replica 0: all TP, all PP"),
    )


def test_a_single_rank_is_not_named_twice() -> None:
    alone = RankGroup("dp", {"dp": (1,)}, "rank 3 (DP 1)", (3,))

    assert ranks.describe(opened_incident(ranks=RankSets((3,), (), ()), groups=(alone,))).rows[0][1] == "rank 3 (DP 1)"


def test_ranks_infected_by_the_same_communication_share_a_line() -> None:
    communication = ("data-parallel reduction", "data-parallel group of tp0 pp0", (0,))
    infected = (
        Infected(2, *communication),
        Infected(6, "not known", "", ()),
        Infected(4, *communication),
        Infected(3, *communication),
    )

    assert ranks.describe(opened_incident(ranks=SETS, infected=infected)).notes == (
        "ranks 2, 3, 4: infected by rank 0 through data-parallel reduction (data-parallel group of tp0 pp0)",
        "rank 6: infected on an unknown path",
    )


def test_infections_beyond_the_limit_are_counted() -> None:
    infected = tuple(Infected(rank, "data-parallel reduction", f"group {rank}", (0,)) for rank in range(1, 12))

    told = described(ranks.describe, opened_incident(infected=infected)).notes

    assert len(told) == 9
    assert told[-1] == "... and 3 more paths of infection"


def test_with_an_origin_infections_are_left_to_the_section_on_propagation() -> None:
    infected = (Infected(2, "data-parallel reduction", "a group", (0,)),)

    assert ranks.describe(opened_incident(infected=infected, origin=(origin(),))).notes == ()


LARGE = ParallelSizes(world=16384, tp=8, cp=1, ep=1, dp=128, pp=16, expert_tp=8, expert_dp=128)


def test_a_small_world_is_shown_rank_by_rank() -> None:
    assert parallel_grid(demo_rows(), SIZES) == Grid(
        columns=("dp0", "dp1"),
        rows=(
            (
                "pp0",
                (
                    (GridMark(Tone.BAD, "0"), GridMark(Tone.BAD, "1")),
                    (GridMark(Tone.SPREAD, "2"), GridMark(Tone.SPREAD, "3")),
                ),
            ),
            (
                "pp1",
                (
                    (GridMark(Tone.BAD, "4"), GridMark(Tone.WORST, "5")),
                    (GridMark(Tone.SPREAD, "6"), GridMark(Tone.SPREAD, "7")),
                ),
            ),
        ),
        legend=(
            (Tone.WORST, "origin (1 rank)"),
            (Tone.BAD, "also bad before the reduction (3 ranks)"),
            (Tone.SPREAD, "bad after it only (4 ranks)"),
        ),
        caption="in a cell: tensor-parallel ranks",
    )


def test_a_single_rank_has_no_grid() -> None:
    assert parallel_grid(demo_rows()[:1], SIZES) is None
    assert parallel_grid((), SIZES) is None


def test_sixteen_thousand_ranks_fit_where_replicas_and_stages_are_equal() -> None:
    # Replica 77 of stages 0 to 7 is bad, its tensor-parallel rank 2 of stage 7 is the origin, the rest is infected.
    def state(rank: int) -> RankState:
        tp, dp, pp = rank % 8, rank // 8 % 128, rank // 1024
        if pp > 7:
            return RankState.CLEAN
        if dp != 77:
            return RankState.INFECTED
        return RankState.ORIGIN if (tp, pp) == (2, 7) else RankState.BAD_BEFORE

    grid = parallel_grid([row(rank, state(rank), LARGE) for rank in range(16384)], LARGE)

    bad, spread, clean = (GridMark(Tone.BAD),) * 8, (GridMark(Tone.SPREAD),) * 8, (GridMark(Tone.GOOD),) * 8
    assert grid is not None
    assert grid.columns == ("dp0-76, 78-127", "dp77")
    assert grid.rows == (
        ("pp0-6", (spread, bad)),
        ("pp7", (spread, (*bad[:2], GridMark(Tone.WORST), *bad[3:]))),
        ("pp8-15", (clean, clean)),
    )


def test_of_many_kinds_of_replicas_the_worst_are_shown() -> None:
    sizes = ParallelSizes(world=1280, tp=10, cp=1, ep=1, dp=128, pp=1, expert_tp=10, expert_dp=128)
    # Every replica has its own pattern of infected ranks: the binary digits of its number, from 1 on.
    digits = [f"{replica + 1:010b}"[::-1] for replica in range(128)]
    states = {
        rank: RankState.INFECTED if digits[rank // 10][rank % 10] == "1" else RankState.CLEAN for rank in range(1280)
    }
    states[955] = RankState.ORIGIN

    grid = parallel_grid([row(rank, state, sizes) for rank, state in states.items()], sizes)

    assert grid is not None
    assert len(grid.columns) == 16
    assert grid.columns[-1] == "dp95"
    assert grid.caption == (
        "in a cell: tensor-parallel ranks; shown: 16 of 128 kinds of replicas, those with the worst ranks"
    )


def test_context_and_expert_parallel_ranks_are_named() -> None:
    context = ParallelSizes(world=4, tp=1, cp=2, ep=1, dp=2, pp=1, expert_tp=1, expert_dp=4)
    experts = ParallelSizes(world=4, tp=1, cp=1, ep=2, dp=4, pp=1, expert_tp=1, expert_dp=2)

    named = [parallel_grid([row(rank, sizes=sizes) for rank in range(4)], sizes) for sizes in (context, experts)]

    assert [grid.columns for grid in named if grid] == [
        ("dp0 cp0", "dp0 cp1", "dp1 cp0", "dp1 cp1"),
        ("dp0 ep0", "dp1 ep1", "dp2 ep0", "dp3 ep1"),
    ]


def test_scattered_equal_replicas_are_counted() -> None:
    sizes = ParallelSizes(world=100, tp=1, cp=1, ep=1, dp=100, pp=1, expert_tp=1, expert_dp=100)
    states = [RankState.CLEAN if rank % 3 else RankState.INFECTED for rank in range(100)]

    grid = parallel_grid([row(rank, state, sizes) for rank, state in enumerate(states)], sizes)

    assert grid is not None
    assert grid.columns == ("34 dp", "66 dp")
