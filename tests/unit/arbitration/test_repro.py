"""`repro.py` of a bundle, where nothing but torch, safetensors and the standard library can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.arbitration.capture import CaughtCall, uncaught
from megatron_nanguard.arbitration.regions import RegionCatcher
from megatron_nanguard.records.bundle import SavedCall
from tests.unit.arbitration.calls import Spoil, bad_first_element, catch

NEGATIVE = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
FAULTY_LOG = """
import torch
library = torch.library.Library("aten", "IMPL")
def log(x):
    out = torch.log2(x) * 0.6931471805599453
    out.view(-1)[0] = float("nan")
    return out
library.impl("log", log, "CPU")
"""
FAULTY_FUNCTION = """
import torch
class SquareKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        grad = 2 * ctx.saved_tensors[0] * grad
        grad[1] = float("inf")
        return grad
"""
AS_EXPECTED = "not reproduced here, as the verdict predicts"


def log_of(x: torch.Tensor, cause: str, spoil: Spoil | None = None) -> CaughtCall:
    call = catch(x.log, "aten.log.default", spoil=spoil)
    return replace(call, saved=replace(call.saved, cause=cause, module="decoder.layers.1.mlp"))


def region(tmp: Path) -> CaughtCall:
    scope: dict[str, type[torch.autograd.Function]] = {}
    exec(FAULTY_FUNCTION, scope)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with RegionCatcher("SquareKernelBackward") as catcher:
        scope["SquareKernel"].apply(x).sum().backward()
    return replace(catcher.call, saved=replace(catcher.call.saved, cause="operator"))


def swiglu() -> CaughtCall:
    """A NaN in the data, through a kernel that only its reference stands for."""

    class SwiGLUFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input, fp8_input_store, cpu_offload_input):  # type: ignore[no-untyped-def]
            return input[..., :2] * input[..., 2:]

    with RegionCatcher("SwiGLUFunction") as catcher:
        SwiGLUFunction.apply(torch.tensor([[1.0, 2.0, 3.0, float("nan")]]), False, False)
    return replace(catcher.call, saved=replace(catcher.call.saved, cause="data", operator="BiasSwiGLUFunction"))


def mended() -> CaughtCall:
    """The twin: the same call, its bad input made good."""
    call = log_of(NEGATIVE, "numerics")
    return replace(call, tensors={"self": call.tensors["self"].abs()})


def redacted() -> CaughtCall:
    call = log_of(NEGATIVE, "data")
    return replace(call, saved=replace(call.saved, is_redacted=True))


ALLREDUCE = uncaught(0, 3, "c10d.allreduce_.default", "a communication needs its group")

CASES: dict[str, tuple[Callable[[Path], CaughtCall], list[str], int, str]] = {
    "data": (lambda _: log_of(torch.tensor([float("nan"), 1.0]), "data"), [], 1, "reproduced"),
    "numerics": (lambda _: log_of(NEGATIVE, "numerics"), [], 1, "reproduced"),
    "state": (lambda _: log_of(-NEGATIVE, "state_corruption"), [], 1, "reproduced"),
    "fault removed": (lambda _: mended(), [], 0, "not reproduced here"),
    "no verdict": (lambda _: log_of(NEGATIVE, ""), [], 1, "reproduced"),
    "operator": (
        lambda _: log_of(NEGATIVE.abs(), "operator", bad_first_element),
        [],
        0,
        "not reproduced here: the verdict blames the kernel; load it with --preload FILE",
    ),
    "transient": (lambda _: log_of(NEGATIVE.abs(), "hardware_transient", bad_first_element), [], 0, AS_EXPECTED),
    "hardware": (lambda _: log_of(NEGATIVE.abs(), "hardware_persistent", bad_first_element), [], 0, AS_EXPECTED),
    "race": (lambda _: log_of(NEGATIVE.abs(), "uninitialised_or_race", bad_first_element), [], 0, AS_EXPECTED),
    "communication": (
        lambda _: replace(ALLREDUCE, saved=replace(ALLREDUCE.saved, cause="communication")),
        [],
        0,
        AS_EXPECTED,
    ),
    "uncalled": (
        lambda _: ALLREDUCE,
        [],
        2,
        "cannot be run: a communication needs its group",
    ),
    "against": (
        lambda _: log_of(NEGATIVE, "hardware_transient"),
        [],
        1,
        "reproduced, against the verdict (hardware_transient)",
    ),
    "region by its reference": (lambda _: swiglu(), [], 1, "reproduced"),
    "region without reference": (
        region,
        [],
        2,
        "cannot be run: SquareKernel is not part of torch; load the file that defines it with --preload FILE",
    ),
    "redacted": (lambda _: redacted(), [], 2, "cannot be run: its tensors were stripped by nanguard redact"),
    "no such device": (lambda _: log_of(NEGATIVE, "data"), ["--device", "npu"], 2, "cannot be run: no device npu"),
    # last: what is preloaded stays loaded in the process of the tests
    "region loaded": (region, ["--preload", "faulty_function.py"], 1, "reproduced"),
    "operator loaded": (
        lambda _: log_of(NEGATIVE.abs(), "operator", bad_first_element),
        ["--preload", "faulty_log.py"],
        1,
        "reproduced",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of every case."""
    root = tmp_path_factory.mktemp("bundles")
    (root / "faulty_log.py").write_text(FAULTY_LOG)
    (root / "faulty_function.py").write_text(FAULTY_FUNCTION)
    words: list[str] = []
    for number, (make, arguments, _, _) in enumerate(CASES.values()):
        directory = root / str(number)
        assert write_bundle(directory, make(root))
        words += [str(directory / "repro.py"), *arguments, "--"]
    runner = [sys.executable, "-I", "-W", "ignore", str(Path(__file__).with_name("only_torch.py"))]
    done = subprocess.run([*runner, *words], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (code, output) for name, (code, output) in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_exit_code_and_last_line(name: str, results: dict[str, tuple[int, str]]) -> None:
    _, _, code, last = CASES[name]

    found, output = results[name]

    assert output.splitlines()[-1].startswith(last)
    assert found == code


def test_the_same_pattern_is_printed(results: dict[str, tuple[int, str]]) -> None:
    assert results["numerics"][1].splitlines() == [
        "aten.log.default in decoder.layers.1.mlp on cpu",
        "output 0 (2, 2) float32: 1 NaN, 0 +Inf, 0 -Inf, first at (1, 1); the same as in the run",
        "reproduced",
    ]


def test_which_gradient_of_a_kernel_is_bad_is_printed(results: dict[str, tuple[int, str]]) -> None:
    assert results["region loaded"][1].splitlines() == [
        "SquareKernel in no module on cpu",
        "output grad of x (3,) float32: 0 NaN, 1 +Inf, 0 -Inf, first at (1,); the same as in the run",
        "reproduced",
    ]


def test_the_saved_call_has_every_key_that_the_script_reads() -> None:
    """The script reads plain JSON; what it needs is what the record always writes."""
    from megatron_nanguard.arbitration import repro
    from megatron_nanguard.records.json_form import fields_of

    keys = {key for _, key, _, _ in fields_of(SavedCall)}
    source = Path(repro.__file__).read_text()
    read = {part.partition('"')[0] for part in source.split('call["')[1:]}
    assert read and read <= keys
