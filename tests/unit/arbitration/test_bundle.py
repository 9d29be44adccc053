"""What a bundle holds, and that one made by somebody else runs, reads and changes nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import save_file

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.bundle import ALLOWED, allowed_operator, read_bundle, write_bundle
from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.arbitration.calls import catch
from tests.unit.conftest import Log

MANY = torch.ones(64, 2).index_put((torch.tensor([9]), torch.tensor([1])), torch.tensor(-1.0))


def bundle(directory: Path) -> CaughtCall:
    call = catch(MANY.log, "aten.log.default")
    assert write_bundle(directory, call)
    return call


def test_a_bundle_holds_these_files_and_comes_back_as_it_was(tmp_path: Path) -> None:
    call = bundle(tmp_path / "bundle")

    names = sorted(path.name for path in (tmp_path / "bundle").iterdir())
    assert names == ["call.json", "full.safetensors", "repro.py", "tensors.safetensors"]
    found = read_bundle(tmp_path / "bundle", whole=True)
    assert found.saved == call.saved
    assert torch.equal(found.tensors["self"], call.tensors["self"])
    assert torch.equal(found.full["self"], MANY)
    assert read_bundle(tmp_path / "bundle").full == {}


def test_the_order_of_dims_in_memory_is_kept(tmp_path: Path) -> None:
    x = torch.ones(2, 3).t()
    call = catch(x.log, "aten.log.default")

    write_bundle(tmp_path, call)

    found = read_bundle(tmp_path)
    assert found.saved.tensors["self"].stride == (1, 3)
    placed = repro.place(found.tensors["self"], {**META, "shape": [3, 2], "stride": [1, 3]}, PLAIN, torch.device("cpu"))
    assert placed.stride() == (1, 3)


META = {"device": "cpu", "requires_grad": False}
PLAIN: dict[str, Any] = {"tensors": {}, "kind": "operator"}


def test_a_kernel_with_a_reference_takes_it_along(tmp_path: Path) -> None:
    call = CaughtCall(SavedCall(rank=0, kind="forward", operator="SwiGLUFunction"))

    write_bundle(tmp_path, call)

    assert "def swiglu(" in (tmp_path / "reference.py").read_text()


def test_a_directory_that_cannot_be_written_costs_one_line(tmp_path: Path, log: Log) -> None:
    (tmp_path / "file").touch()

    assert not write_bundle(tmp_path / "file" / "bundle", CaughtCall(SavedCall(rank=0, operator="x")))

    assert len(log.messages) == 1
    assert log.messages[0].startswith(f"cannot write {tmp_path}/file/bundle: ")


def change(**changes: Any) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        call = orjson.loads((directory / "call.json").read_bytes())
        (directory / "call.json").write_bytes(orjson.dumps({**call, **changes}))

    return apply


def pickled(directory: Path) -> None:
    (directory / "tensors.safetensors").write_bytes(pickle.dumps({"self": [1.0]}))


def linked_tensors(directory: Path) -> None:
    outside = directory.parent / "outside.safetensors"
    (directory / "tensors.safetensors").rename(outside)
    (directory / "tensors.safetensors").symlink_to(outside)


def linked_call(directory: Path) -> None:
    outside = directory.parent / "outside.json"
    (directory / "call.json").rename(outside)
    (directory / "call.json").symlink_to(outside)


def other_tensors(directory: Path) -> None:
    save_file({"self": torch.ones(2)}, directory / "tensors.safetensors")


def huge(directory: Path) -> None:
    (directory / "call.json").write_bytes(b" " * ((4 << 20) + 1))


def huge_tensors(directory: Path) -> None:
    os.truncate(directory / "tensors.safetensors", 1 << 40)


def header(**changes: Any) -> Callable[[Path], None]:
    """The file says something else of its only tensor than what follows."""

    def apply(directory: Path) -> None:
        told = orjson.dumps({"self": {"dtype": "F32", "shape": [5, 2], "data_offsets": [0, 40], **changes}})
        (directory / "tensors.safetensors").write_bytes(len(told).to_bytes(8, "little") + told + bytes(40))

    return apply


def header_without_end(directory: Path) -> None:
    (directory / "tensors.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def directory_of_that_name(directory: Path) -> None:
    (directory / "tensors.safetensors").unlink()
    (directory / "tensors.safetensors").mkdir()


def endless(directory: Path) -> None:
    (directory / "call.json").unlink()
    (directory / "call.json").symlink_to("/dev/zero")


def pipe(directory: Path) -> None:
    (directory / "call.json").unlink()
    os.mkfifo(directory / "call.json")


STRIDED = {"self": {**META, "shape": [5, 2], "stride": [1 << 40, 1], "dtype": "float32", "is_finite": True}}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (pickled, "is no safetensors file"),
        (linked_tensors, "points out of the bundle"),
        (linked_call, "points out of the bundle"),
        (other_tensors, "is float32 (2,), not as described"),
        (huge, "has 4194305 bytes, more than the 4194304 that we write"),
        (huge_tensors, "has 1099511627776 bytes, more than the 272629760 that we write"),
        (header(shape=[1 << 40, 1 << 40]), "is no safetensors file"),
        (header(shape=[-1, 10]), "is no safetensors file"),
        (header(data_offsets=[0, 1 << 40]), "is no safetensors file"),
        (header(data_offsets=[-40, 0]), "is no safetensors file"),
        (header(dtype="PICKLE"), "is no safetensors file"),
        (header(dtype="I32"), "self is int32 (5, 2), not as described"),
        (header_without_end, "is no safetensors file"),
        (directory_of_that_name, "it has no tensors.safetensors"),
        (endless, "it has no call.json"),
        (pipe, "it has no call.json"),
        (change(tensors=STRIDED), "stride (1099511627776, 1), which is not dense"),
        (change(tensors={"../self": STRIDED["self"]}), "names 'self', and describes no such tensor"),
        (
            change(tensors={"../self": STRIDED["self"], **STRIDED}),
            "holds ['self'], call.json says ['../self', 'self']",
        ),
        (change(is_redacted=True), "stripped by nanguard redact"),
        (change(surprise=1), "no such key"),
        (change(kind="python"), "expected one of operator, forward, backward"),
        (lambda directory: (directory / "tensors.safetensors").unlink(), "it has no tensors.safetensors"),
        (lambda directory: (directory / "call.json").write_text("import os"), "not JSON"),
    ],
)
def test_a_bundle_that_is_not_ours_is_refused(tmp_path: Path, spoil: Callable[[Path], None], complaint: str) -> None:
    bundle(tmp_path / "bundle")
    spoil(tmp_path / "bundle")

    with pytest.raises(PostmortemError) as caught:
        read_bundle(tmp_path / "bundle")

    assert complaint in str(caught.value)


def test_a_planted_secret_of_the_environment_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANGUARD_TEST_TOKEN", "hush-4711")

    call = bundle(tmp_path)
    write_bundle(tmp_path, replace(call, saved=replace(call.saved, cause="numerics")))

    assert [path for path in tmp_path.iterdir() if b"hush-4711" in path.read_bytes()] == []


@pytest.mark.parametrize("name", ["aten.log.default", "aten.log_.default", "aten.mm.default", "aten._softmax.default"])
def test_arithmetic_is_on_the_list_in_place_too(name: str) -> None:
    assert str(allowed_operator(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.set_.source_Storage",
        "aten.resize_.default",
        "aten.as_strided.default",
        "aten.__class__.default",
        "aten.log.__init__",
        "prim.Print.default",
        "c10d.allreduce_.default",
        "builtins.eval.default",
        "torch.load",
        "aten.log.default.__globals__",
        "aten.log",
        "",
        "os.system('true')",
    ],
)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(PostmortemError):
        allowed_operator(name)


def test_an_overload_that_torch_does_not_have_is_named() -> None:
    with pytest.raises(PostmortemError, match=r"^this torch has no operator aten\.log\.Unheard$"):
        allowed_operator("aten.log.Unheard")


def test_every_name_on_the_list_is_an_operator_of_torch() -> None:
    aten = torch.ops.aten
    assert [name for name in ALLOWED if not (hasattr(aten, name) or hasattr(aten, f"{name}_"))] == []
