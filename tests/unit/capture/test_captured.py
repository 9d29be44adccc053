"""Reading what a rank saved, and the message for each way in which it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_nanguard.capture import Captured, captured, check, read, without_tensors
from megatron_nanguard.capture.tensor_file import write_tensors
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.step.capture import CaptureFile, file_name
from tests.unit.factories import capture_file

RECORD = capture_file()
TENSORS = {"parameter/w": torch.tensor([1.0, float("nan")])}


def saved(folder: Path, record: CaptureFile = RECORD) -> Path:
    path = folder / file_name(5)
    path.parent.mkdir()
    write_tensors(path.with_suffix(".safetensors"), TENSORS)
    path.write_bytes(to_json(record))
    return path


def test_a_capture_comes_back(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found = read(tmp_path, 5)
    assert found.record == RECORD
    assert found.tensors["parameter/w"].view(torch.int32).tolist() == TENSORS["parameter/w"].view(torch.int32).tolist()
    size = sum(each.stat().st_size for each in path.parent.iterdir())
    assert Captured(RECORD, TENSORS).num_bytes == size


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (replace(RECORD, is_redacted=True), "its tensors were stripped by nanguard redact"),
        (
            without_tensors(RECORD, "no room"),
            r"holds digests alone \(no room\); --nanguard-capture full saves the step",
        ),
    ],
)
def test_a_record_without_tensors_says_why(tmp_path: Path, record: CaptureFile, message: str) -> None:
    saved(tmp_path, record)
    with pytest.raises(PostmortemError, match=message):
        read(tmp_path, 5)


def test_a_rank_that_saved_nothing_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(PostmortemError, match=r"rank00006\.json is not there: --nanguard-capture full"):
        read(tmp_path, 6)


@pytest.mark.parametrize("found_by", [check, read])
@pytest.mark.parametrize("content", [None, b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{broken}"])
def test_a_damaged_tensor_file_is_named(
    tmp_path: Path, content: bytes | None, found_by: Callable[[Path, int], object]
) -> None:
    tensors = saved(tmp_path).with_suffix(".safetensors")
    tensors.unlink()
    if content is not None:
        tensors.write_bytes(content)
    with pytest.raises(PostmortemError, match=r"rank00005\.safetensors cannot be read"):
        found_by(tmp_path, 5)


def test_a_tensor_file_that_was_cut_short_is_noticed_without_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "load_file", None)
    tensors = saved(tmp_path).with_suffix(".safetensors")
    assert check(tmp_path, 5) == RECORD
    tensors.write_bytes(tensors.read_bytes()[:-4])
    with pytest.raises(PostmortemError, match=r"rank00005\.safetensors cannot be read"):
        check(tmp_path, 5)


def test_a_rank_without_data_calls_and_tensors_has_no_content() -> None:
    assert not Captured(RECORD).has_content
    assert Captured(RECORD, TENSORS).has_content
