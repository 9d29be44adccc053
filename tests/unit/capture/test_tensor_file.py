"""A safetensors file written tensor by tensor, read by the library itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_nanguard.capture.tensor_file import DTYPES, can_hold, file_bytes, free_bytes, in_words, write_tensors


def test_the_library_reads_back_every_dtype_bit_for_bit(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.tensor([[0, 1, 2]]).to(dtype) for dtype in DTYPES}
    tensors["nan"] = torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16)
    path = tmp_path / "rank00000.safetensors"

    write_tensors(path, tensors)

    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert path.stat().st_size == file_bytes(tensors)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_views_scalars_and_empty_tensors_are_written_as_what_they_show(tmp_path: Path) -> None:
    square = torch.arange(6.0).view(2, 3)
    tensors = {"turned": square.t(), "part": square[:, 1:], "scalar": torch.tensor(3.0), "empty": torch.empty(0, 4)}

    write_tensors(tmp_path / "a.safetensors", tensors)

    found = load_file(tmp_path / "a.safetensors")
    assert found["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert found["part"].tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert found["scalar"].item() == 3.0
    assert found["empty"].shape == (0, 4)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").mkdir()

    with pytest.raises(OSError):
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})

    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_tensor_that_cannot_be_copied_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError):
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2, device="meta")})

    assert list(tmp_path.iterdir()) == []


def test_only_plain_dense_tensors_of_a_known_dtype_can_be_held() -> None:
    class Wrapped(torch.Tensor):
        """A subclass, whose elements are not all it is."""

    plain = torch.ones(2)
    assert can_hold(plain)
    assert can_hold(torch.nn.Parameter(plain))
    others = [plain.to_sparse(), plain.to(torch.complex64), plain.to("meta"), plain.as_subclass(Wrapped)]
    assert [can_hold(one) for one in others] == [False] * 4


def test_the_disk_is_known_before_the_directory_is_there(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert abs(free_bytes(tmp_path / "not" / "yet") - free) < free / 2


def test_sizes_are_given_in_gib() -> None:
    assert [in_words(3 << 30), in_words(0), in_words(1 << 20)] == ["3.00 GiB", "0.00 GiB", "0.00 GiB"]
