"""Files of ranks: what is damaged, strange or there twice is left out and named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.rank_files import RankFiles, check_place, check_sizes
from megatron_nanguard.postmortem.run_directory import postmortem_name
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.postmortem import Postmortem
from tests.unit.factories import SIZES, place, postmortem


def write(directory: Path, *records: Postmortem) -> None:
    for record in records:
        (directory / postmortem_name(record)).write_bytes(to_json(record))


def ranks(files: RankFiles) -> list[int]:
    return [one.coordinates.rank for one in files]


def test_files_of_ranks_are_read_in_order_and_nothing_else_is(tmp_path: Path) -> None:
    write(tmp_path, *(postmortem(rank) for rank in (5, 0, 3)))
    for name in ("incident.json", "rank.json", "rank00001_tp1pp0dp0.json.bak", ".rank00001_tp1pp0dp0.json.77"):
        (tmp_path / name).write_text("{")

    files = RankFiles(tmp_path)

    assert ranks(files) == [0, 3, 5]
    assert files.complaints == ()


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (
            postmortem(7, step=4),
            "left out: of step 4 of run 20260101-120000-ab12 on 8 ranks, "
            "while the files before it are of step 3 of run 20260101-120000-ab12 on 8 ranks",
        ),
        (
            postmortem(7, sizes=replace(SIZES, world=16)),
            "left out: of step 3 of run 20260101-120000-ab12 on 16 ranks, "
            "while the files before it are of step 3 of run 20260101-120000-ab12 on 8 ranks",
        ),
        (postmortem(7, coordinates=replace(place(7), dp=9)), "key coordinates.dp is 9, expected 0 to 1"),
    ],
)
def test_a_file_of_another_incident_or_out_of_range_is_left_out(
    tmp_path: Path, record: Postmortem, complaint: str
) -> None:
    write(tmp_path, postmortem(0), record)

    files = RankFiles(tmp_path)

    assert ranks(files) == [0]
    assert files.complaints == (f"{postmortem_name(record)}: {complaint}",)


def test_a_second_file_of_a_rank_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, postmortem(0))
    (tmp_path / "rank00000_copy.json").write_bytes(to_json(postmortem(0)))

    files = RankFiles(tmp_path)

    assert ranks(files) == [0]
    assert files.complaints == ("rank00000_tp0pp0dp0.json: left out: rank 0 has rank00000_copy.json already",)


def test_a_rank_with_other_parallel_sizes_of_the_same_step_is_kept(tmp_path: Path) -> None:
    write(tmp_path, postmortem(0), postmortem(7, sizes=replace(SIZES, tp=4)))

    assert ranks(RankFiles(tmp_path)) == [0, 7]


def test_of_many_complaints_the_first_are_listed(tmp_path: Path) -> None:
    for rank in range(40):
        (tmp_path / f"rank{rank:05d}_x.json").write_text("{")

    files = RankFiles(tmp_path)

    assert ranks(files) == []
    assert len(files.complaints) == 17
    assert files.complaints[-1] == "24 more files of ranks were left out"


def test_the_progress_tracker_receives_the_file_names(tmp_path: Path) -> None:
    write(tmp_path, postmortem(0), postmortem(1))
    seen: list[tuple[list[str], str]] = []

    def track(names: Sequence[str], what: str) -> Iterable[str]:
        seen.append((list(names), what))
        return names

    assert ranks(RankFiles(tmp_path, track)) == [0, 1]
    assert seen == [(["rank00000_tp0pp0dp0.json", "rank00001_tp1pp0dp0.json"], "files of ranks")]


def test_a_missing_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(PostmortemError, match=r"nothing: cannot be read: No such file or directory$"):
        RankFiles(tmp_path / "nothing")


def test_a_place_as_a_run_writes_it_passes() -> None:
    check_sizes(SIZES, "x")
    for rank in range(8):
        check_place(place(rank), SIZES, "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "x: key sizes.tp is 0, expected 1 to 1048576"),
        ({"world": -8}, "x: key sizes.world is -8, expected 1 to 1048576"),
        ({"world": 1 << 40}, "x: key sizes.world is 1099511627776, expected 1 to 1048576"),
        ({"tp": 4096, "dp": 4096}, "x: tp, cp, dp and pp make 33554432 ranks, expected at most 1048576"),
    ],
)
def test_a_layout_of_another_world_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(PostmortemError) as caught:
        check_sizes(replace(SIZES, **changes), "x")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 8}, "x: key coordinates.rank is 8, expected 0 to 7"),
        ({"dp": 2}, "x: key coordinates.dp is 2, expected 0 to 1"),
        ({"pp": -1}, "x: key coordinates.pp is -1, expected 0 to 1"),
    ],
)
def test_a_place_outside_of_its_layout_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(PostmortemError) as caught:
        check_place(replace(place(5), **changes), SIZES, "x")

    assert str(caught.value) == message
