"""`repro.py` of real incidents, one per kind of cause, where nothing but torch, safetensors and Python can be imported.

Two runs make all bundles. Twins are the same bundle with the fault taken out of its tensors.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatron_nanguard.arbitration.bundle import read_bundle
from megatron_nanguard.arbitration.device_comparison import compare_devices
from megatron_nanguard.errors import ReplayError
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS, Layout
from tests.ranks.run_files import RunFiles
from tests.unit.arbitration import only_torch

pytestmark = pytest.mark.ranks

SEAMS = Path(__file__).with_name("seams")
GUARD = "megatron_nanguard:enable"
SECRET = "hush-4711"
TENSOR = LAYOUTS["D2"].plus("--tensor-model-parallel-size", "2", "--global-batch-size", "8")
ON_ONE_RANK = {
    2: "nan_sample",
    3: "log_of_negative",
    4: "fused_attention",
    5: "half_written",
    6: "mutated",
    7: "kernel",
    8: "bad_copy",
}
"""The bad weight comes last: skipping does not heal it."""
ON_TWO_RANKS = {2: "kernel", 3: "kernel_in_step", 4: "kernel_once", 5: "all_reduce"}

FAULTY_GELU = """
import math, torch
library = torch.library.Library("aten", "IMPL")
def gelu(x, *, approximate="none"):
    result = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    result.view(-1)[-64:] = math.nan
    return result
library.impl("gelu", gelu, "CPU")
"""
BY_ROWS = "rows 0, 1, 2, 3, 31 of 32: up to 16 bad ones and 4 good ones; --full takes all"
AS_EXPECTED = "not reproduced here, as the verdict predicts"
BLAMES_KERNEL = "not reproduced here: the verdict blames the kernel; load it with --preload FILE"


@dataclass(frozen=True)
class Case:
    """One start of a script.

    Attributes:
        world: ranks of the run.
        seam: fault that made the bundle.
        code: exit code.
        printed: all that is printed but the second line, which names the device of this machine.
        verdict: as the second line has it.
        arguments: of the script.
        mend: takes the fault out of a tensor.
    """

    world: int
    seam: str
    code: int
    printed: tuple[str, ...]
    verdict: str
    arguments: tuple[str, ...] = ()
    mend: Callable[[Tensor], Tensor] | None = None


LARGEST = re.compile(r", largest \S+$")
"""The largest value of an input differs in its last digits from processor to processor."""
FLASH = "FlashAttnFunc in decoder.layers.1.self_attention.core_attention on cpu"
CASES = {
    "data": Case(
        1,
        "nan_sample",
        1,
        (
            "aten.clone.default in no module on cpu",
            "output 0 (2, 32) float32: 2 NaN, first at (0, 5); the same as in the run",
            "reproduced",
        ),
        "data",
    ),
    "data, mended": Case(
        1,
        "nan_sample",
        0,
        (
            "aten.clone.default in no module on cpu",
            "output 0 (2, 32) float32: finite; in the run: 2 NaN, first at (0, 5)",
            "not reproduced here",
        ),
        "data",
        mend=torch.nan_to_num,
    ),
    "numerics": Case(
        1,
        "log_of_negative",
        1,
        (
            "aten.log.default in decoder.layers.1.mlp on cpu",
            "output 0 (1, 2, 64) float32: 128 NaN, first at (0, 0, 0); the same as in the run",
            "reproduced",
        ),
        "numerics",
    ),
    "numerics, mended": Case(
        1,
        "log_of_negative",
        0,
        (
            "aten.log.default in decoder.layers.1.mlp on cpu",
            "output 0 (1, 2, 64) float32: finite; in the run: 128 NaN, first at (0, 0, 0)",
            "not reproduced here",
        ),
        "numerics",
        mend=torch.abs,
    ),
    # A token that nobody looked up: only the product that reuses the embedding is bad, in its first column.
    "state": Case(
        1,
        "bad_copy",
        1,
        (
            "aten.mm.default in embedding.word_embeddings on cpu",
            "output 0 (64, 128) float32: 64 NaN, first at (0, 0); the same as in the run",
            "reproduced",
        ),
        "state_corruption",
        arguments=("--full",),
    ),
    "state, mended": Case(
        1,
        "bad_copy",
        0,
        (
            "aten.mm.default in embedding.word_embeddings on cpu",
            "output 0 (64, 128) float32: finite; in the run: 64 NaN, first at (0, 0)",
            "not reproduced here",
        ),
        "state_corruption",
        arguments=("--full",),
        mend=torch.nan_to_num,
    ),
    "operator, its kernel not loaded": Case(
        1,
        "kernel",
        0,
        (
            "aten.gelu.default in decoder.layers.0.mlp on cpu",
            BY_ROWS,
            "output 0 (5, 2, 256) float32: finite; in the run: 64 NaN, first at (4, 1, 192)",
            BLAMES_KERNEL,
        ),
        "operator",
    ),
    "function, its kernel not loaded": Case(
        1,
        "fused_attention",
        0,
        (
            FLASH,
            "tests.ranks.seams.functions cannot be imported: No module named 'tests'",
            "input q (2, 32, 4, 16) float32: finite",
            "input k (2, 32, 4, 16) float32: finite",
            "input v (2, 32, 4, 16) float32: finite",
            "input grad_output.0 (2, 32, 4, 16) float32: finite",
            "output grad of q (2, 32, 4, 16) float32: finite",
            "output grad of k (2, 32, 4, 16) float32: 96 NaN, first at (0, 5, 2, 0)",
            "output grad of v (2, 32, 4, 16) float32: finite",
            "FlashAttnFunc is not here; its plain PyTorch reference runs instead",
            "output grad of q (2, 32, 4, 16) float32: finite; the same as in the run",
            "output grad of k (2, 32, 4, 16) float32: finite; in the run: 96 NaN, first at (0, 5, 2, 0)",
            "output grad of v (2, 32, 4, 16) float32: finite; the same as in the run",
            BLAMES_KERNEL,
        ),
        "operator",
    ),
    "race": Case(
        1,
        "half_written",
        0,
        (
            "half_written in decoder.layers.1.mlp on cpu",
            "cannot be run: memory that nobody wrote was read; there is no call to make again",
            AS_EXPECTED,
        ),
        "uninitialised_or_race",
    ),
    "race that no replay brings back": Case(
        1,
        "mutated",
        0,
        (
            "no operator in no module on cpu",
            "cannot be run: the fault did not come back when the step was run again; there is no call to make again",
            AS_EXPECTED,
        ),
        "uninitialised_or_race",
    ),
    "hardware": Case(
        2,
        "kernel",
        0,
        (
            "aten.gelu.default in decoder.layers.0.mlp on cpu",
            BY_ROWS,
            "output 0 (5, 2, 128) float32: finite; in the run: 64 NaN, first at (4, 1, 64)",
            AS_EXPECTED,
        ),
        "hardware_persistent",
    ),
    "transient": Case(
        2,
        "kernel_in_step",
        0,
        (
            "aten.gelu.default in decoder.layers.0.mlp on cpu",
            BY_ROWS,
            "output 0 (5, 2, 128) float32: finite; in the run: 64 NaN, first at (4, 1, 64)",
            AS_EXPECTED,
        ),
        "hardware_transient",
    ),
    "transient that no replay brings back": Case(
        2,
        "kernel_once",
        0,
        (
            "no operator in no module on cpu",
            "cannot be run: the fault did not come back when the step was run again; there is no call to make again",
            "not reproduced here: the run found no call that brings it back",
        ),
        "undecided",
    ),
    "communication": Case(
        2,
        "all_reduce",
        0,
        (
            "allreduce_ in embedding.word_embeddings on cpu",
            "cannot be run: a communication needs its group",
            AS_EXPECTED,
        ),
        "communication",
    ),
    # What is preloaded stays loaded for the scripts that follow in the same process.
    "function, its kernel loaded": Case(
        1,
        "fused_attention",
        1,
        (
            FLASH,
            "output grad of q (2, 32, 4, 16) float32: finite; the same as in the run",
            "output grad of k (2, 32, 4, 16) float32: 96 NaN, first at (0, 5, 2, 0); the same as in the run",
            "output grad of v (2, 32, 4, 16) float32: finite; the same as in the run",
            "reproduced",
        ),
        "operator",
        arguments=("--preload", "flash_attention.py"),
    ),
    "operator, its kernel loaded": Case(
        1,
        "kernel",
        1,
        (
            "aten.gelu.default in decoder.layers.0.mlp on cpu",
            BY_ROWS,
            "output 0 (5, 2, 256) float32: 64 NaN, first at (4, 1, 192); the same as in the run",
            "reproduced",
        ),
        "operator",
        arguments=("--preload", "gelu.py"),
    ),
}


def train(ranks: Server, layout: Layout, folder: Path, seams: Mapping[int, str], *more: str) -> Path:
    """One fault per step, a secret in the environment of every rank; the directory of the run."""
    guarded = layout.plus(
        *("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", "skip"),
        *("--nanguard-max-skips", "99/99", "--train-iters", str(max(seams)), *more),
    )
    variables = {
        "SEAMS": ";".join(f"{step}={name}" for step, name in seams.items()),
        "MY_TOKEN": SECRET,
        "NANGUARD_TEST_KEY": SECRET,
        "NCCL_SECRET_KEY": SECRET,
    }
    finished = ranks.run(layout.nproc, SEAMS / "run.py", guarded.args, env=variables, in_rank=GUARD, cwd=folder)
    assert finished.code == 0, finished.out
    return RunFiles.only_one_of(folder).path


@pytest.fixture(scope="module")
def runs(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The directories of both runs by the number of ranks."""
    return {
        1: train(ranks, LAYOUTS["D1"], tmp_path_factory.mktemp("one"), ON_ONE_RANK, "--nanguard-capture", "full"),
        2: train(ranks, TENSOR, tmp_path_factory.mktemp("two"), ON_TWO_RANKS),
    }


def bundle_of(runs: Mapping[int, Path], world: int, seam: str) -> Path:
    steps = {name: step for step, name in {1: ON_ONE_RANK, 2: ON_TWO_RANKS}[world].items()}
    return runs[world] / "incidents" / f"step_{steps[seam]:08d}" / "bundle"


@pytest.fixture(scope="module")
def results(runs: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of every case, each bundle moved to where nothing else is."""
    mailbox = tmp_path_factory.mktemp("mailbox")
    (mailbox / "gelu.py").write_text(FAULTY_GELU)
    (mailbox / "flash_attention.py").write_text(kernel_as_it_was())
    words: list[str] = []
    for number, case in enumerate(CASES.values()):
        folder = Path(shutil.copytree(bundle_of(runs, case.world, case.seam), mailbox / f"from {number}"))
        if case.mend is not None:
            mend(folder, case.mend)
        words += [str(folder / "repro.py"), *case.arguments, "--"]
    return dict(zip(CASES, alone(words, mailbox), strict=True))


def alone(words: Sequence[str], cwd: Path) -> list[tuple[int, str]]:
    """Run scripts in a process that can import nothing of ours, of Megatron or of a third party."""
    env = {name: os.environ[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS") if name in os.environ}
    runner = [sys.executable, "-I", "-W", "ignore", only_torch.__file__]
    done = subprocess.run([*runner, *words], capture_output=True, text=True, cwd=cwd, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return [(code, printed) for code, printed in map(json.loads, done.stdout.splitlines())]


def kernel_as_it_was() -> str:
    """The kernel of the run in a file of its own."""
    parts = [(SEAMS / name).read_text() for name in ("when.py", "functions.py")]
    wanted = ("spoil", "probabilities", "FlashAttnFunc")
    found = [node for part in parts for node in ast.parse(part).body if getattr(node, "name", None) in wanted]
    assert len(found) == len(wanted)
    start = "from __future__ import annotations\nimport ctypes, math, torch\nHEAD, ROWS, worse = 2, range(5, 8), max"
    return "\n".join([start, *map(ast.unparse, found)])


def mend(bundle: Path, repair: Callable[[Tensor], Tensor]) -> None:
    for path in bundle.glob("*.safetensors"):
        save_file({name: repair(tensor) for name, tensor in load_file(path).items()}, path)


@pytest.mark.parametrize("name", CASES)
def test_what_a_user_sees_who_gets_the_bundle_alone(name: str, results: dict[str, tuple[int, str]]) -> None:
    case = CASES[name]

    code, printed = results[name]

    lines = printed.splitlines()
    assert (lines[0], *(LARGEST.sub("", line) for line in lines[2:])) == case.printed
    assert lines[1].startswith("in the run: ") and lines[1].endswith(f"; the verdict was {case.verdict}")
    assert code == case.code


@pytest.mark.parametrize(
    ("world", "seam", "outcomes"),
    [
        (1, "nan_sample", ("bad", "bad")),
        (1, "log_of_negative", ("bad", "bad")),
        (1, "bad_copy", ("bad", "bad")),
        (1, "kernel", ("finite", "finite")),
        (1, "fused_attention", ("finite", "finite")),
        (2, "kernel", ("finite", "finite")),
        (2, "kernel_in_step", ("finite", "finite")),
    ],
)
def test_nanguard_replay_calls_the_operators_of_real_incidents(
    runs: dict[int, Path], world: int, seam: str, outcomes: tuple[str, str]
) -> None:
    found = compare_devices(read_bundle(bundle_of(runs, world, seam)), ("cpu",))

    assert tuple(device.outcome for device in found) == outcomes


@pytest.mark.parametrize(("world", "seam"), [(1, "half_written"), (1, "mutated"), (2, "all_reduce")])
def test_nanguard_replay_says_where_there_is_no_call(runs: dict[int, Path], world: int, seam: str) -> None:
    with pytest.raises(ReplayError, match="cannot be run alone: "):
        compare_devices(read_bundle(bundle_of(runs, world, seam)), ("cpu",))


def test_a_secret_of_the_environment_is_in_no_artefact(runs: dict[int, Path]) -> None:
    files = [path for run in runs.values() for path in run.parent.parent.rglob("*") if path.is_file()]

    assert {"fingerprint.json", "incident.json", "call.json", "tensors.safetensors"} <= {path.name for path in files}
    assert any("capture" in path.parts for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
