"""The parallel grid of the page: a cell per rank, and rows of equal replicas in a large run."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.postmortem.rank_table import RankState
from megatron_nanguard.report.html.pictures.rank_grid import RankGrid, parallel_grid
from tests.unit.factories import SIZES
from tests.unit.report.html.factories import LARGE, opened_large_run, row

ROWS = tuple(map(row, range(8)))


def shown(grid: RankGrid) -> list[tuple[str, list[str]]]:
    """Rows of a grid as text: "x 4" for a cell, stages one after the other."""
    return [
        (row.name, [f"{cell.symbol} {cell.text}".strip() for stage in row.stages for cell in stage])
        for row in grid.rows
    ]


def test_every_rank_of_a_small_run_has_a_cell_of_its_own() -> None:
    grid = parallel_grid(ROWS, SIZES)

    assert grid.stages == ("pp 0", "pp 1")
    assert shown(grid) == [("dp 0", ["x 0", "x 1", "x 4", "! 5"]), ("dp 1", ["~ 2", "~ 3", "~ 6", "~ 7"])]
    assert grid.rows[0].stages[1][1].words == "rank 5, tp1pp1dp0: origin"
    assert [(one.symbol, one.words) for one in grid.legend] == [
        ("!", "origin (1 rank)"),
        ("x", "also bad before the reduction (3 ranks)"),
        ("~", "bad after it only (4 ranks)"),
    ]
    assert grid.notes == ()
    assert not grid.is_wide


def test_a_rank_that_does_not_train_is_named_below_the_grid() -> None:
    stranger = replace(row(7), rank=8, coordinates=replace(row(7).coordinates, rank=8, pp=2), state=RankState.MISSING)

    grid = parallel_grid((*ROWS, stranger), SIZES)

    assert sum(len(cells) for _, cells in shown(grid)) == 8
    assert grid.notes == ("Ranks without a place in the layout: 8.",)


def test_equal_replicas_share_a_row_in_a_large_run() -> None:
    # rank 5000 = tp 0 + 8 * (dp 113 + 128 * pp 4)
    grid = parallel_grid(opened_large_run().rows, LARGE)

    assert shown(grid) == [
        ("dp 0-112", ["~ 904"] * 16),
        ("dp 113", ["x 8"] * 4 + ["! 1/8"] + ["~ 8"] * 11),
        ("dp 114-127", ["~ 112"] * 16),
    ]
    assert grid.rows[1].stages[4][0].words == "8 ranks: 1 origin, 7 bad before the reduction"
    assert grid.rows[1].stages[4][0].ranks == "5000-5007"
    assert grid.is_wide


def test_the_worst_rows_are_kept_where_there_are_too_many() -> None:
    # Every second replica has a clean rank on stage 0, so that no two neighbours look alike.
    rows = [
        replace(one, state=RankState.CLEAN) if one.coordinates.dp % 2 and one.rank < 1024 and not one.rank % 8 else one
        for one in opened_large_run().rows
    ]

    grid = parallel_grid(rows, LARGE)

    # dp 0 to 127 each have a row; dp 113 is the gravest, the others are equally grave
    assert [name for name, _ in shown(grid)] == [*(f"dp {replica}" for replica in range(47)), "dp 113"]
    assert grid.notes == ("80 more rows of replicas are not shown.",)


def test_the_reading_hint_names_only_the_axes_in_use() -> None:
    assert parallel_grid(ROWS, SIZES).how.startswith(
        "Data-parallel replicas downwards, pipeline stages across, tensor-parallel ranks side by side. Click"
    )
    alone = replace(SIZES, world=1, tp=1, dp=1, pp=1)
    assert parallel_grid(ROWS[:1], alone).how.startswith("Click a cell")


def test_without_a_rank_there_is_no_row() -> None:
    grid = parallel_grid((), SIZES)
    assert (grid.rows, grid.legend, grid.is_wide) == ((), (), False)
