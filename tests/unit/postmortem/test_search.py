"""An incident is found under any path a person would give; where it is not, the message says what there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.search import find_incident, incidents_in

OLD, NEW = "20260101T120000Z-ab12", "20260102T120000Z-cd34"
NOBODY = 65534


def make(root: Path, run: str, *names: str) -> list[Path]:
    paths = [root / "runs" / run / "incidents" / name for name in names]
    for path in paths:
        path.mkdir(parents=True)
        (path / "incident.json").touch()
    return paths


def test_the_newest_incident_of_the_newest_run_is_found_from_the_root(tmp_path: Path) -> None:
    make(tmp_path, OLD, "step_00000090")
    _, newest = make(tmp_path, NEW, "step_00000009", "step_00000010")

    assert find_incident(tmp_path) == newest


def test_a_run_without_incident_does_not_hide_an_older_one(tmp_path: Path) -> None:
    (found,) = make(tmp_path, OLD, "step_00000003")
    (tmp_path / "runs" / NEW / "status").mkdir(parents=True)

    assert find_incident(tmp_path) == found


def test_run_incident_and_file_path_find_the_same_incident(tmp_path: Path) -> None:
    (found,) = make(tmp_path, NEW, "step_00000003")

    for path in (tmp_path / "runs" / NEW, found, found / "incident.json"):
        assert find_incident(path) == found


def test_numbers_within_a_step_and_steps_of_many_digits_sort_as_numbers(tmp_path: Path) -> None:
    make(tmp_path, OLD, "step_00000003", "step_00000003.9", "step_00000003.10", "step_99999999", "step_100000000")

    assert find_incident(tmp_path).name == "step_100000000"
    assert find_incident(tmp_path, step=3).name == "step_00000003.10"


def test_a_step_picks_the_newest_run_that_has_it(tmp_path: Path) -> None:
    make(tmp_path, OLD, "step_00000003", "step_00000007")
    _, newer = make(tmp_path, NEW, "step_00000009", "step_00000003")

    assert find_incident(tmp_path, step=3) == newer
    assert find_incident(tmp_path, step=7).parents[1].name == OLD


def test_a_missing_step_is_an_error_that_lists_the_others(tmp_path: Path) -> None:
    make(tmp_path, OLD, "step_00000003")
    make(tmp_path, NEW, "step_00000009", "step_00000010.1")

    with pytest.raises(PostmortemError) as caught:
        find_incident(tmp_path, step=4)

    assert str(caught.value) == (
        f"{tmp_path} holds no incident of step 4; it holds step 10 ({NEW}), step 9 ({NEW}), step 3 ({OLD})"
    )


def test_of_many_incidents_the_newest_twenty_are_listed(tmp_path: Path) -> None:
    make(tmp_path, NEW, *(f"step_{step:08d}" for step in range(1, 31)))

    with pytest.raises(PostmortemError, match=r"step 30 .*, step 11 \(\S+\) and 10 more$"):
        find_incident(tmp_path, step=99)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "DIR does not exist; give the directory of --nanguard-dir, a run or an incident"),
        (("x",), "DIR is no directory of --nanguard-dir: it has neither runs/ nor incidents/"),
        (("runs/a", "runs/b"), "DIR holds 2 runs and no incident"),
        (("incidents",), "DIR holds no incident"),
        (("incidents/notes",), "DIR holds no incident"),
    ],
)
def test_the_error_for_a_path_without_incidents_says_what_the_path_is(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    directory = tmp_path / "DIR"
    for name in names:
        (directory / name).mkdir(parents=True)

    with pytest.raises(PostmortemError) as caught:
        find_incident(directory)

    assert str(caught.value).replace(f"{tmp_path}/", "") == message


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (Path.touch, "NAME is not an incident.json; give its directory"),
        (os.mkfifo, "NAME is no directory; give the directory of --nanguard-dir, a run or an incident"),
    ],
)
def test_a_path_that_is_neither_directory_nor_incident_is_an_error(
    tmp_path: Path, prepare: Callable[[Path], object], message: str
) -> None:
    prepare(tmp_path / "NAME")

    with pytest.raises(PostmortemError) as caught:
        find_incident(tmp_path / "NAME")

    assert str(caught.value).replace(f"{tmp_path}/", "") == message


def test_a_name_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PostmortemError, match=r"cannot be read: File name too long$"):
        find_incident(tmp_path / ("x" * 300))


def test_a_directory_without_permission_is_an_error(tmp_path: Path) -> None:
    (found,) = make(tmp_path, OLD, "step_00000003")
    found.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(NOBODY)
        with pytest.raises(PostmortemError, match=r"cannot be read: Permission denied$"):
            find_incident(found)
    finally:
        if root:
            os.seteuid(0)
        found.chmod(0o700)


def test_a_link_among_the_incidents_hides_none(tmp_path: Path) -> None:
    incidents = tmp_path / "runs/run/incidents"
    (incidents / "step_00000003").mkdir(parents=True)
    (incidents / "step_00000003" / "incident.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (incidents / "step_00000009").symlink_to(tmp_path / "elsewhere")
    (incidents / "step_00000008").symlink_to(tmp_path / "nowhere")
    (incidents / "step_00000007").symlink_to("step_00000007")
    (tmp_path / "runs/zzz").symlink_to(tmp_path / "elsewhere")
    assert find_incident(tmp_path) == incidents / "step_00000003"
    assert incidents_in(tmp_path / "runs/run") == [incidents / "step_00000003", incidents / "step_00000009"]


def test_an_incident_that_was_moved_and_linked_is_found_by_its_step(tmp_path: Path) -> None:
    incidents, moved = tmp_path / "runs/run/incidents", tmp_path / "moved"
    for folder in (incidents / "step_00000003", moved):
        folder.mkdir(parents=True)
        (folder / "incident.json").write_text("{}")
    (incidents / "step_00000002").symlink_to(moved)
    assert find_incident(tmp_path) == incidents / "step_00000003"
    assert find_incident(tmp_path, 2) == incidents / "step_00000002"


def test_the_newest_incident_that_holds_something_is_found(tmp_path: Path) -> None:
    incidents = tmp_path / "runs/run/incidents"
    for step in (3, 4):
        (incidents / f"step_{step:08d}").mkdir(parents=True)
    (incidents / "step_00000003" / "incident.json").write_text("{}")
    assert find_incident(tmp_path) == incidents / "step_00000003"
