"""`repro.py` of a bundle, where nothing but torch, safetensors and the standard library can be imported."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.arbitration.call_catcher import CAP_BYTES, CaughtCall, unsaved_call
from megatron_nanguard.records.causes import Cause, Family
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.arbitration.calls import Spoil, bad_first_element, catch, listening

NEGATIVE = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
MANY = torch.ones(64, 2).index_put((torch.tensor([9]), torch.tensor([1])), torch.tensor(-1.0))
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


def log_of(x: torch.Tensor, cause: str, spoil: Spoil | None = None, cap_bytes: int = CAP_BYTES) -> CaughtCall:
    call = catch(x.log, "aten.log.default", spoil=spoil, cap_bytes=cap_bytes)
    place = {"module": "decoder.layers.1.mlp", "phase": "forward", "step": 3, "device": "A card"}
    return replace(call, saved=replace(call.saved, cause=cause, **place))  # type: ignore[arg-type]


def blamed(call: CaughtCall, cause: str) -> CaughtCall:
    return replace(call, saved=replace(call.saved, cause=cause))


def too_large() -> CaughtCall:
    """What was too large to be saved is not loaded by --preload."""
    return blamed(catch(lambda: MANY.log().sum(), "aten.sum.default", cap_bytes=100), "operator")


@functools.cache
def faulty_function() -> dict[str, type[torch.autograd.Function]]:
    scope: dict[str, type[torch.autograd.Function]] = {}
    exec(FAULTY_FUNCTION, scope)
    return scope


def region(tmp: Path) -> CaughtCall:
    scope = faulty_function()
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with listening("SquareKernelBackward") as catcher:
        scope["SquareKernel"].apply(x).sum().backward()
    return replace(catcher.call, saved=replace(catcher.call.saved, cause="operator", device="A card"))


def swiglu() -> CaughtCall:
    """A NaN in the data, through a kernel that only its reference stands for."""

    class SwiGLUFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input, fp8_input_store, cpu_offload_input):  # type: ignore[no-untyped-def]
            return input[..., :2] * input[..., 2:]

    with listening("SwiGLUFunction.forward") as catcher:
        SwiGLUFunction.apply(torch.tensor([[1.0, 2.0, 3.0, float("nan")]]), False, False)
    return replace(catcher.call, saved=replace(catcher.call.saved, cause="data", operator="BiasSwiGLUFunction"))


def mended() -> CaughtCall:
    """The twin: the same call, its bad input made good."""
    call = log_of(NEGATIVE, "numerics")
    return replace(call, tensors={"self": call.tensors["self"].abs()})


def redacted() -> CaughtCall:
    call = log_of(NEGATIVE, "data")
    return replace(call, saved=replace(call.saved, is_redacted=True))


ALLREDUCE = unsaved_call(0, 3, "c10d.allreduce_.default", "a communication needs its group")

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
        0,
        "not reproduced here: the verdict blames the kernel; load it with --preload FILE",
    ),
    "region not in what is loaded": (
        region,
        ["--preload", "nothing.py"],
        2,
        "cannot be run: SquareKernel is not part of torch; load the file that defines it with --preload FILE",
    ),
    "region of another cause": (
        lambda tmp: blamed(region(tmp), "data"),
        [],
        2,
        "cannot be run: SquareKernel is not part of torch; load the file that defines it with --preload FILE",
    ),
    "region that a device spoiled": (lambda tmp: blamed(region(tmp), "hardware_transient"), [], 0, AS_EXPECTED),
    "operator that was too large": (lambda _: too_large(), [], 2, "cannot be run: the call has 512 bytes of inputs"),
    "redacted": (lambda _: redacted(), [], 2, "cannot be run: its tensors were stripped by nanguard redact"),
    "no such device": (lambda _: log_of(NEGATIVE, "data"), ["--device", "npu"], 2, "cannot be run: no device npu"),
    "no such device, and not expected": (
        lambda _: log_of(NEGATIVE.abs(), "hardware_transient", bad_first_element),
        ["--device", "npu"],
        2,
        "cannot be run: no device npu",
    ),
    "nonsense for a device": (
        lambda _: log_of(NEGATIVE, "data"),
        ["--device", "cpu:x"],
        2,
        "cannot be run: no device cpu:x: Invalid device string",
    ),
    "nothing to load": (
        lambda _: log_of(NEGATIVE, "data"),
        ["--preload", "absent.py"],
        2,
        "cannot be run: cannot load absent.py; give a .py or a .so that is there",
    ),
    "no library to load": (
        lambda _: log_of(NEGATIVE, "data"),
        ["--preload", "absent.so"],
        2,
        "cannot be run: cannot load absent.so: ",
    ),
    "rows": (lambda _: log_of(MANY, "numerics"), [], 1, "reproduced"),
    "whole": (lambda _: log_of(MANY, "numerics"), ["--full"], 1, "reproduced"),
    "whole as it is": (lambda _: log_of(NEGATIVE, "numerics"), ["--full"], 1, "reproduced"),
    "whole was too large": (
        lambda _: log_of(MANY, "numerics", cap_bytes=100),
        ["--full"],
        2,
        "cannot be run: the whole inputs were too large to be kept; without --full it runs on the rows that matter",
    ),
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
    (root / "nothing.py").touch()
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
        "in the run: forward, rank 5, step 3, A card; the verdict was numerics",
        "output 0 (2, 2) float32: 1 NaN, first at (1, 1); the same as in the run",
        "reproduced",
    ]


def test_what_differs_from_the_run_is_printed_beside_it(results: dict[str, tuple[int, str]]) -> None:
    assert results["fault removed"][1].splitlines()[2:] == [
        "output 0 (2, 2) float32: finite; in the run: 1 NaN, first at (1, 1)",
        "not reproduced here",
    ]


def test_which_rows_are_there_is_said(results: dict[str, tuple[int, str]]) -> None:
    assert results["rows"][1].splitlines()[2:4] == [
        "rows 0, 1, 2, 3, 9 of 64: up to 16 bad ones and 4 good ones; --full takes all",
        "output 0 (5, 2) float32: 1 NaN, first at (4, 1); the same as in the run",
    ]
    assert results["whole"][1].splitlines()[2] == (
        "output 0 (64, 2) float32: 1 NaN, first at (9, 1); the same as in the run"
    )


def test_which_gradient_of_a_kernel_is_bad_is_printed(results: dict[str, tuple[int, str]]) -> None:
    assert results["region loaded"][1].splitlines() == [
        "SquareKernel in no module on cpu",
        "in the run: rank 0, A card; the verdict was operator",
        "output grad of x (3,) float32: 1 +Inf, first at (1,); the same as in the run",
        "reproduced",
    ]


def damaged_call(directory: Path) -> None:
    (directory / "call.json").write_text("{")


def damaged_tensors(directory: Path) -> None:
    content = (directory / "tensors.safetensors").read_bytes()
    (directory / "tensors.safetensors").write_bytes(content[:-4])


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damaged_call, "call.json beside this script: Expecting property name"),
        (lambda directory: (directory / "call.json").unlink(), "call.json beside this script: [Errno 2]"),
        (damaged_tensors, "tensors.safetensors is damaged: "),
        (
            lambda directory: (directory / "tensors.safetensors").unlink(),
            "no tensors.safetensors beside this script; a bundle is the whole directory",
        ),
    ],
)
def test_a_damaged_bundle_is_one_line_and_no_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    complaint: str,
) -> None:
    write_bundle(tmp_path, log_of(NEGATIVE, "data"))
    damage(tmp_path)
    monkeypatch.setattr(repro, "__file__", str(tmp_path / "repro.py"))

    assert repro.main([]) == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"cannot be run: {complaint}")


def test_without_torch_it_says_what_it_needs(tmp_path: Path) -> None:
    write_bundle(tmp_path, log_of(NEGATIVE, "data"))
    probe = (
        "import runpy, sys; sys.modules['torch'] = None; "
        f"runpy.run_path({str(tmp_path / 'repro.py')!r}, run_name='__main__')"
    )

    done = subprocess.run([sys.executable, "-I", "-c", probe], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("cannot be run: ")
    assert done.stdout.endswith("it needs torch and safetensors: pip install torch safetensors\n")


def test_a_kernel_that_cannot_be_loaded_is_no_answer(tmp_path: Path) -> None:
    write_bundle(tmp_path, log_of(NEGATIVE, "data"))
    (tmp_path / "kernel.py").write_text("import a_package_of_the_sender")

    done = subprocess.run(
        [sys.executable, "-I", "repro.py", "--preload", "kernel.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert done.returncode == 2, "1 would say that the call reproduced"
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'a_package_of_the_sender'"


def test_the_saved_call_has_every_key_that_the_script_reads() -> None:
    """The script reads plain JSON; what it needs is what the record always writes."""
    from megatron_nanguard.records.json.fields import fields_of

    keys = {key for _, key, _, _ in fields_of(SavedCall)}
    source = Path(repro.__file__).read_text()
    read = {part.partition('"')[0] for part in source.split('call["')[1:]}
    assert read and read <= keys


def test_the_causes_that_the_call_alone_does_not_show_are_those_outside_of_its_values_and_code() -> None:
    outside = (Family.TRANSPORT, Family.MEMORY, Family.HARDWARE)

    assert {*repro.NOT_EXPECTED} == {cause for cause in Cause if cause.family in outside}


LIBRARY = """
import torch
__version__ = "2.4.1"
class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, inp, quantizer=None):
        out = inp @ weight.T
        out[0, 1] = float("nan")
        return out
"""


@pytest.fixture
def of_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the bundle of a Function that is from a library, which has this version now."""
    (tmp_path / "opaque_kernels.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    library = importlib.import_module("opaque_kernels")
    monkeypatch.setitem(sys.modules, "opaque_kernels", library)

    def write(*more: object) -> Path:
        with listening("_Linear.forward") as catcher:
            library._Linear.apply(torch.ones(2, 3), torch.ones(4, 3), *more)
        call = replace(catcher.call, saved=replace(catcher.call.saved, cause="operator"))
        assert call.saved.source == "opaque_kernels:_Linear"
        assert call.saved.versions["opaque_kernels"] == "2.4.1"
        directory = tmp_path / "bundle"
        write_bundle(directory, call)
        (tmp_path / "opaque_kernels.py").write_text(LIBRARY.replace("2.4.1", "2.5.0"))
        return directory

    return write


def run_script(directory: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    set_path = f"import sys; sys.path[:0] = {[str(one) for one in path]!r}"
    run = f"import runpy; runpy.run_path({str(directory / 'repro.py')!r}, run_name='__main__')"
    command = [sys.executable, "-I", "-W", "ignore", "-c", f"{set_path}; sys.argv = ['repro.py']; {run}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_function_is_imported_from_its_library_and_both_versions_are_said(
    of_library: Callable[..., Path], tmp_path: Path
) -> None:
    done = run_script(of_library(), tmp_path)

    assert done.stdout.splitlines()[2:] == [
        "opaque_kernels 2.5.0; in the run: 2.4.1",
        "output 0 (4, 2) float32: 1 NaN, first at (0, 1); the same as in the run",
        "reproduced",
    ]
    assert done.returncode == 1


def test_where_the_library_is_missing_the_saved_facts_and_the_reference_remain(of_library: Callable[..., Path]) -> None:
    done = run_script(of_library())

    assert done.stdout.splitlines()[2:] == [
        "opaque_kernels cannot be imported: No module named 'opaque_kernels'",
        "input weight (2, 3) float32: finite, largest 1",
        "input inp (4, 3) float32: finite, largest 1",
        "output 0 (4, 2) float32: 1 NaN, first at (0, 1)",
        "_Linear is not here; its plain PyTorch reference runs instead",
        "output 0 (4, 2) float32: finite; in the run: 1 NaN, first at (0, 1)",
        "not reproduced here: the verdict blames the kernel; load it with --preload FILE",
    ]
    assert done.returncode == 0


def test_a_call_with_an_argument_that_no_file_holds_runs_by_its_reference(
    of_library: Callable[..., Path], tmp_path: Path
) -> None:
    done = run_script(of_library(object()), tmp_path)

    assert done.stdout.splitlines()[3:5] == [
        "_Linear does not run here: argument quantizer was a object, which no file holds; its plain PyTorch reference "
        "runs instead",
        "output 0 (4, 2) float32: finite; in the run: 1 NaN, first at (0, 1)",
    ]
