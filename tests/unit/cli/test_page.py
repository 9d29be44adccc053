"""`--html FILE` is refused before the work where it cannot be written, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_nanguard.cli.page import check_target, write_page
from megatron_nanguard.errors import SettingsError


@pytest.mark.parametrize(
    ("make", "name", "complaint"),
    [
        (Path.touch, "page", "--html: DIR/page exists; give another name, or --force to write over it"),
        (Path.mkdir, "page", "--html: DIR/page is not a regular file"),
        (os.mkfifo, "page", "--html: DIR/page is not a regular file"),
        (Path.mkdir, "page/none/page", "--html: DIR/page/none is no directory"),
        (Path.touch, "x" * 300, f"--html: DIR/{'x' * 300} cannot be written: File name too long"),
    ],
    ids=["file", "directory", "pipe", "nowhere", "long"],
)
def test_what_stands_in_the_way_is_told(
    tmp_path: Path, make: Callable[[Path], object], name: str, complaint: str
) -> None:
    make(tmp_path / "page")

    with pytest.raises(SettingsError) as caught:
        check_target(tmp_path / name, force=False)

    assert str(caught.value).replace(str(tmp_path), "DIR") == complaint


def test_force_writes_over_a_file_and_over_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    check_target(tmp_path / "page", force=True)
    check_target(tmp_path / "new", force=False)

    with pytest.raises(SettingsError, match="is not a regular file"):
        check_target(tmp_path, force=True)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    (tmp_path / "link").symlink_to(tmp_path / "page")

    write_page(tmp_path / "link", "层")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page").read_text(encoding="utf-8") == "层"


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()

    with pytest.raises(SettingsError, match=r"page cannot be written: Is a directory$"):
        write_page(tmp_path / "page", "text")

    assert [path.name for path in tmp_path.iterdir()] == ["page"]
