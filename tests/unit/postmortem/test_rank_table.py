"""One row per rank, from whatever files are there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.rank_table import LISTED_UNKNOWN, RankRow, RankState, RankTable, rank_table
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import Incident, Infected
from megatron_nanguard.records.postmortem import Microbatch, RankSets
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import CPU, SETS, SIZES, demo_postmortem, incident, place

INFECTED = Infected(2, "data-parallel reduction", "data-parallel group of tp0 pp0", (0,))


def written(root: Path, *ranks: int) -> Path:
    """The files of some ranks of the demo in one incident directory."""
    run = RunDirectory(root, "a-run", log=pytest.fail)
    for rank in ranks:
        run.write_postmortem("incidents/step_00000003", demo_postmortem(rank))
    return run.path / "incidents" / "step_00000003"


def known(**changes: object) -> Incident:
    return incident(ranks=SETS, origin=(origin(),), infected=(INFECTED,), **changes)


def test_a_row_joins_the_file_of_a_rank_and_the_incident(tmp_path: Path) -> None:
    rows = rank_table(known(), written(tmp_path, *range(8)))

    assert [row.state.value for row in rows] == [
        "bad_before",
        "bad_before",
        "infected",
        "infected",
        "bad_before",
        "origin",
        "infected",
        "infected",
    ]
    row = rows[4]
    assert (row.rank, row.coordinates, row.label, row.has_file) == (4, place(4), "tp0pp1dp0", True)
    assert (row.host, row.device) == ("node1", "Test CPU")
    assert row.norm is not None and math.isnan(row.norm)
    assert row.bad_by_layer == {"decoder.layers.2": 1, "decoder.layers.3": 1}
    assert row.microbatches == (Microbatch(0, 10.5, 64), Microbatch(1, 10.25, 64))
    assert rows[2].infected == INFECTED


def test_without_files_places_come_from_the_layout_and_states_from_the_incident(tmp_path: Path) -> None:
    rows = rank_table(known(), tmp_path)

    assert [row.coordinates for row in rows] == [place(rank) for rank in range(8)]
    assert [row.state for row in rows[4:6]] == [RankState.BAD_BEFORE, RankState.ORIGIN]
    assert rows[4] == RankRow(rank=4, coordinates=place(4), label="tp0pp1dp0", state=RankState.BAD_BEFORE)


def test_ranks_without_file_and_exchange_are_missing(tmp_path: Path) -> None:
    rows = rank_table(incident(ranks=RankSets((), (2,), (0,))), written(tmp_path, 0, 2))

    assert [row.state.value for row in rows] == ["clean", "missing", "infected", *["missing"] * 5]


def test_a_rank_with_a_damaged_file_gets_a_row_without_file(tmp_path: Path) -> None:
    directory = written(tmp_path, 0)
    (directory / "rank00001_tp1pp0dp0.json").write_text("{")

    assert [row.has_file for row in rank_table(known(), directory)] == [True, *[False] * 7]


def test_a_place_in_the_file_outweighs_the_default_order(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "a-run", log=pytest.fail)
    elsewhere = replace(place(2), dp=0, pp=1)
    run.write_postmortem("incidents/step_00000003", replace(demo_postmortem(2), coordinates=elsewhere))

    rows = rank_table(known(), run.path / "incidents" / "step_00000003")

    assert rows[2].coordinates == elsewhere
    assert rows[2].label == "tp0pp1dp0"


def test_a_device_is_shown_with_its_number(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "a-run", log=pytest.fail)
    run.write_postmortem("incidents/step_00000003", replace(demo_postmortem(0), device=replace(CPU, index=3)))

    assert rank_table(known(), run.path / "incidents" / "step_00000003")[0].device == "Test CPU (3)"


@pytest.mark.parametrize("changes", [{"tp": 0}, {"world": 1 << 40}])
def test_a_layout_with_sizes_out_of_range_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(PostmortemError, match=r"key sizes\.\w+ is \d+, expected 1 to 1048576$"):
        rank_table(incident(sizes=replace(SIZES, **changes)), tmp_path)


def test_context_and_expert_ranks_follow_the_default_order() -> None:
    sizes = ParallelSizes(world=16, tp=2, cp=2, ep=2, dp=2, pp=2, expert_tp=1, expert_dp=4)

    # By hand: 13 = 8 of stage 0, then 5 = tp 1 + 2 * (cp 0 + 2 * dp 1); the experts count 5 = ep 1 + 2 * replica 2.
    assert Coordinates.in_default_order(13, sizes) == Coordinates(13, 1, 0, 1, 1, 1, 0, 2)


def test_a_file_that_claims_a_million_ranks_makes_rows_of_those_that_are_known_and_a_few_more() -> None:
    world = 1 << 20
    sizes = ParallelSizes(**{**vars(SIZES), "world": world, "dp": world // 4})
    table = RankTable()
    table.add(demo_postmortem(5))
    claimed = incident(sizes=sizes, ranks=RankSets((world - 1,), (), ()))
    rows = table.rows(claimed)
    assert len(rows) == LISTED_UNKNOWN + 2
    assert [row.rank for row in rows if row.state is not RankState.MISSING] == [5, world - 1]
