"""A bundle on several devices, for `nanguard replay`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_nanguard.arbitration import bundle
from megatron_nanguard.arbitration.call_catcher import CaughtCall, unsaved_call
from megatron_nanguard.arbitration.device_comparison import compare_devices, default_devices
from megatron_nanguard.errors import PostmortemError, ReplayError
from megatron_nanguard.records.suspect_call import Argument, DeviceOutcome, SavedCall, SavedOutput, Value
from tests.unit.arbitration.calls import catch

NEGATIVE = torch.tensor([-1.0])


def test_devices_stand_side_by_side_and_float64_comes_last() -> None:
    call = catch(NEGATIVE.log, "aten.log.default")
    bad = (SavedOutput("0", (1,), "float32", 1, 0, 0, (0,)),)

    assert compare_devices(call, ("cpu", "npu", "nn")) == (
        DeviceOutcome("cpu", "bad", bad),
        DeviceOutcome("npu", "no device npu: No module named 'torch_npu'", ()),
        DeviceOutcome("nn", "no device nn on this machine", ()),
        DeviceOutcome("cpu, float64", "bad", ()),
    )


def test_an_overflow_of_the_type_is_said_beside_float64() -> None:
    call = catch(lambda: torch.tensor([1e5]).half(), "aten._to_copy.default")

    assert compare_devices(call, ())[-1].outcome == "bad; finite in float64, but not in the type of the output"


def test_every_machine_has_a_cpu() -> None:
    assert default_devices()[0] == "cpu"


@pytest.mark.parametrize(
    ("saved", "complaint"),
    [
        (SavedCall(rank=0, operator="aten.from_file.default"), "is not on the list"),
        (SavedCall(rank=0, operator="prim.Print.default"), "is not on the list"),
        (SavedCall(rank=0, kind="forward", operator="Popen"), "has no reference here"),
    ],
)
def test_what_is_not_on_the_list_is_not_run(saved: SavedCall, complaint: str) -> None:
    with pytest.raises(PostmortemError, match=complaint):
        compare_devices(CaughtCall(saved), ("cpu",))


@pytest.mark.parametrize(
    ("operator", "accused"), [("c10d.allreduce_.default", "c10d.allreduce_.default"), ("", "this bundle")]
)
def test_without_a_call_it_says_why(operator: str, accused: str) -> None:
    with pytest.raises(ReplayError, match=f"^{accused} cannot be run alone: it needs its group$"):
        compare_devices(unsaved_call(0, 1, operator, "it needs its group"), ("cpu",))


def test_a_result_larger_than_the_memory_is_a_reason() -> None:
    call = catch(lambda: torch.ones(2, 1) @ torch.ones(1, 2), "aten.mm.default")
    hostile = {"self": torch.ones(1 << 21, 1), "mat2": torch.ones(1, 1 << 21)}
    described = {
        name: replace(call.saved.tensors[name], shape=x.shape, stride=x.stride()) for name, x in hostile.items()
    }

    outcomes = compare_devices(replace(call, saved=replace(call.saved, tensors=described), tensors=hostile), ("cpu",))

    assert "you tried to allocate 17592186044416 bytes" in outcomes[0].outcome


@pytest.mark.parametrize(
    ("kind", "text"), [("dtype", "load"), ("dtype", "hub"), ("layout", "save"), ("memory_format", "__builtins__")]
)
def test_a_dtype_that_torch_lacks_is_a_reason(kind: str, text: str) -> None:
    call = catch(NEGATIVE.log, "aten.log.default")
    hostile = (*call.saved.args, Argument("x", (Value(kind, text),)))  # type: ignore[arg-type]

    outcomes = compare_devices(replace(call, saved=replace(call.saved, args=hostile)), ("cpu",))

    assert outcomes[0].outcome == f"torch.{text} is neither a dtype nor a layout of this torch"


def test_the_script_and_the_reference_of_a_bundle_are_never_run(tmp_path: Path) -> None:
    bundle.write_bundle(tmp_path, catch(NEGATIVE.log, "aten.log.default"))
    for name in ("repro.py", "reference.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")

    compare_devices(bundle.read_bundle(tmp_path), ("cpu",))

    assert not (tmp_path / "ran").exists()
