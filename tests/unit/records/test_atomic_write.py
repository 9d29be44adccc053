"""A file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.records.atomic_write import atomic_write


def test_the_target_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


@pytest.mark.parametrize("raised", [OSError, ValueError, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_there_alone(tmp_path: Path, raised: type[BaseException]) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    with pytest.raises(raised), atomic_write(target) as temporary:
        temporary.write_text("half")
        raise raised

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_a_directory_under_the_name_of_the_target_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()

    with pytest.raises(IsADirectoryError), atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("new")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
