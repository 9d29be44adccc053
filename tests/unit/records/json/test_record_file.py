"""Whatever lies under the name of a file, it is a record or one message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.conversion import to_json
from megatron_nanguard.records.json.record_file import read_bytes, read_record
from megatron_nanguard.records.postmortem import Microbatch


def test_a_record_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_bytes(to_json(Microbatch(1, 2.5, 64)))

    assert read_record(Microbatch, file) == Microbatch(1, 2.5, 64)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (Path.mkdir, "cannot be read: not a regular file"),
        (os.mkfifo, "cannot be read: not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (sparse, "cannot be read: 2147483648 bytes, expected at most 268435456; no file of a run is as large"),
    ],
    ids=["missing", "directory", "pipe", "device", "loop", "sparse"],
)
def test_what_is_no_file_of_a_run_is_said_to_be_none(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "one.json"
    make(path)

    with pytest.raises(PostmortemError) as caught:
        read_record(Microbatch, path)

    assert str(caught.value) == f"{path}: {message}"


def test_a_message_names_the_file_as_asked(tmp_path: Path) -> None:
    with pytest.raises(PostmortemError, match=r"^rank 5: cannot be read: No such file or directory$"):
        read_bytes(tmp_path / "one.json", "rank 5")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"index": 1e999}'])
def test_a_file_that_is_not_json_is_said_to_be_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(content)

    with pytest.raises(PostmortemError, match=r"one\.json: not JSON \(.*\); the file is damaged or was cut short$"):
        read_record(Microbatch, path)
