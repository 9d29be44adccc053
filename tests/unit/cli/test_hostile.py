"""Whatever lies in the directory of an incident: a report or one line that names the file, and no word to the terminal.

Every opened is made by a seed; `spoilt(content, seed)` gives it again.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.cli.hostile import spoilt, write_run
from tests.unit.cli.leaving import Left, leave

STEERING = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e", "\u2028", "\r")
MERGED, RANK, FIRST, TRACE = (
    "incident.json",
    "rank00005_tp1pp1dp0.json",
    "rank00000_tp0pp0dp0.json",
    "trace00005_tp1pp1dp0.json",
)


class Terminal(io.StringIO):
    """A stream that says of itself that somebody watches."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def check(left: Left, directory: Path) -> None:
    """A report, or one line that names what cannot be read; never a character that steers."""
    assert left.code in (0, 4)
    assert not [each for each in STEERING if each in left.out + left.err]
    if left.code == 4:
        assert left.out == ""
        assert left.err.startswith("nanguard: ") and left.err.count("\n") == 1
        assert str(directory) in left.err


def keep(directory: Path, *names: str) -> None:
    """Take away all files of the incident but these."""
    for path in directory.iterdir():
        if path.is_file() and path.name not in names:
            path.unlink()


@pytest.mark.parametrize("name", [MERGED, FIRST])
def test_a_damaged_single_file_is_reported_or_named_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    directory = write_run(tmp_path)
    keep(directory, name)
    whole = (directory / name).read_bytes()
    codes = set()
    for seed in range(150):
        (directory / name).write_bytes(spoilt(whole, seed))
        left = leave(capsys, "report", tmp_path)
        check(left, directory)
        codes.add(left.code)
    assert codes == {0, 4}


@pytest.mark.parametrize("name", [RANK, FIRST, TRACE])
def test_a_damaged_file_among_others_removes_at_most_its_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    directory = write_run(tmp_path)
    whole = (directory / name).read_bytes()
    (directory / MERGED).unlink()
    for seed in range(60):
        (directory / name).write_bytes(spoilt(whole, seed))
        left = leave(capsys, "report", tmp_path)
        check(left, directory)
        assert left.code == 0


def test_a_damaged_incident_is_merged_again_from_the_files_of_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path)
    whole = (directory / MERGED).read_bytes()
    for seed in range(60):
        (directory / MERGED).write_bytes(spoilt(whole, seed))
        left = leave(capsys, "report", tmp_path)
        check(left, directory)
        assert left.code == 0


def test_without_a_readable_fingerprint_the_report_lacks_only_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path)
    file = directory.parents[1] / "fingerprint.json"
    whole = file.read_bytes()
    assert "/data/checkpoints" in leave(capsys, "report", tmp_path).out
    for seed in range(60):
        file.write_bytes(spoilt(whole, seed))
        left = leave(capsys, "report", tmp_path)
        check(left, directory)
        assert left.code == 0


def test_control_characters_do_not_reach_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_run(tmp_path)
    keep(directory, MERGED)
    whole = (directory / MERGED).read_bytes()
    for seed in range(60):
        (directory / MERGED).write_bytes(spoilt(whole, seed))
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        left = leave(capsys, "report", tmp_path)
        check(Left(left.code, terminal.getvalue(), left.err), directory)


def test_json_escapes_control_characters_and_keeps_the_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path)
    keep(directory, MERGED)
    whole = (directory / MERGED).read_bytes()
    for seed in range(60):
        (directory / MERGED).write_bytes(spoilt(whole, seed))
        check(leave(capsys, "report", tmp_path, "--json"), directory)


def test_a_page_is_written_or_the_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_run(tmp_path)
    keep(directory, MERGED)
    whole = (directory / MERGED).read_bytes()
    page = tmp_path / "page.html"
    for seed in range(20):
        (directory / MERGED).write_bytes(spoilt(whole, seed))
        left = leave(capsys, "report", tmp_path, "--html", page, "--force")
        check(left, directory)
        assert "<script>window.owned" not in (page.read_text(encoding="utf-8") if page.exists() else "")


def test_a_damaged_call_is_stripped_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = write_run(tmp_path) / "bundle" / "call.json"
    for seed in range(60):
        call.write_bytes(spoilt(to_json(SavedCall(rank=5, operator="aten.log.default")), seed))
        left = leave(capsys, "redact", tmp_path)
        assert left.code in (0, 4)
        assert not [each for each in STEERING if each in left.out + left.err]
        assert left.code == 0 or str(call) in left.err


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


STRANGE: tuple[Callable[[Path], object], ...] = (
    Path.touch,
    Path.mkdir,
    os.mkfifo,
    sparse,
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.write_bytes(b"\xff\xfe\x00"),
)


@pytest.mark.parametrize("make", STRANGE, ids=["empty", "directory", "pipe", "sparse", "loop", "device", "bytes"])
@pytest.mark.parametrize("name", [RANK, TRACE])
def test_a_rank_file_path_that_is_no_readable_file_becomes_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, make: Callable[[Path], object]
) -> None:
    directory = write_run(tmp_path)
    (directory / MERGED).unlink()
    (directory / name).unlink()
    make(directory / name)

    left = leave(capsys, "report", tmp_path, "--json")

    assert left.code == 0
    assert f"{name}: " in left.out


@pytest.mark.parametrize("make", STRANGE[:4], ids=["empty", "directory", "pipe", "sparse"])
def test_an_incident_path_that_is_no_readable_file_is_named_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object]
) -> None:
    directory = write_run(tmp_path)
    keep(directory)
    make(directory / MERGED)

    left = leave(capsys, "report", tmp_path)

    check(left, directory)
    assert left.code == 4
    assert f"{directory / MERGED}: " in left.err


def test_a_directory_whose_name_is_an_escape_sequence_is_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "\x1b]0;owned\x07\udcff"
    directory.mkdir()

    left = leave(capsys, "report", directory)

    assert left.code == 4
    assert left.err.startswith(f"nanguard: {tmp_path}/\\x1b]0;owned\\x07\\udcff is no directory of --nanguard-dir")
    write_run(directory)
    assert leave(capsys, "report", directory).code == 0
