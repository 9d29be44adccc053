"""`nanguard replay`: output, exit codes, and that a hostile bundle runs nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from click.testing import CliRunner

from megatron_nanguard.arbitration import device_comparison
from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.cli import main
from megatron_nanguard.cli.replay import command
from tests.unit.arbitration.calls import catch
from tests.unit.cli.leaving import leave


def write(directory: Path, x: torch.Tensor) -> Path:
    call = catch(x.log, "aten.log.default")
    saved = replace(call.saved, device="A card", module="decoder.layers.1.mlp", step=3)
    assert write_bundle(directory, replace(call, saved=saved))
    return directory


def test_devices_are_compared_with_the_run(tmp_path: Path) -> None:
    write(tmp_path, torch.tensor([1.0, -1.0, 0.0]))

    result = CliRunner().invoke(command, [str(tmp_path), "--device", "cpu"], standalone_mode=False)

    assert result.output.splitlines() == [
        "aten.log.default in decoder.layers.1.mlp, rank 5, step 3",
        "in the run    A card; output 0: 1 NaN, 1 -Inf, first at (1,)",
        "cpu           bad; output 0: 1 NaN, 1 -Inf, first at (1,)",
        "cpu, float64  bad",
    ]
    assert result.return_value == 1


def test_the_number_of_saved_rows_is_printed(tmp_path: Path) -> None:
    write(tmp_path, torch.cat([torch.ones(63, 1), -torch.ones(1, 1)]))

    result = CliRunner().invoke(command, [str(tmp_path), "--device", "cpu"], standalone_mode=False)

    assert result.output.splitlines()[1] == "5 of 64 rows"


def test_a_call_that_is_finite_here_exits_with_0(tmp_path: Path) -> None:
    write(tmp_path, torch.tensor([1.0]))

    result = CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False)

    assert result.return_value == 0
    assert "cpu           finite" in result.output.splitlines()


TOUCH = "__import__('pathlib').Path('ran').touch()"
UNLISTED = "is not on the list of what a bundle may call; nothing was run"


def value(kind: str, text: str) -> dict[str, Any]:
    return {"args": [{"name": "self", "values": [{"kind": kind, "text": text}], "is_list": False}]}


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"operator": "aten.from_file.default"}, 4, f"operator 'aten.from_file.default' {UNLISTED}"),
        ({"operator": TOUCH}, 4, UNLISTED),
        ({"operator": "aten.log.default; \x1b[2J"}, 4, UNLISTED),
        ({"kind": "backward", "operator": "Popen"}, 4, "'Popen' has no reference here"),
        ({"kind": "forward", "operator": "../reference"}, 4, "'../reference' has no reference here"),
        (value("dtype", TOUCH), 5, "ran on no device"),
        (value("int", TOUCH), 5, "ran on no device"),
        (value("float", TOUCH), 5, "ran on no device"),
        (value("complex", TOUCH), 5, "ran on no device"),
        (value("str", TOUCH), 5, "ran on no device"),
        (value("tensor", "/etc/passwd"), 4, "names '/etc/passwd', and describes no such tensor"),
        (value("generator", "self"), 5, "ran on no device"),
        ({"args": []}, 5, "ran on no device"),
        ({"rng": "nowhere", "rng_device": "cpu"}, 4, "names 'nowhere', and describes no such tensor"),
        ({"rng": "self", "rng_device": "cpu"}, 5, "ran on no device"),
        ({"args": [{"name": "self", "values": [], "is_list": False}]}, 4, "argument self has 0 values, expected 1"),
        ({"kind": "forward", "operator": "FlashAttnFunc"}, 5, "ran on no device"),
        ({"kind": "forward", "operator": "FlashAttnFunc", **value("str", TOUCH)}, 5, "ran on no device"),
        ({"kind": "forward", "operator": "_VocabParallelCrossEntropy", "args": []}, 5, "ran on no device"),
        ({"module": "\x1b[2J", "cause": TOUCH, "device": TOUCH}, 1, ""),
    ],
)
def test_a_hostile_bundle_runs_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    code: int,
    said: str,
) -> None:
    write(tmp_path, torch.tensor([-1.0]))
    for script in ("repro.py", "reference.py", "torch_npu.py", "sitecustomize.py"):
        (tmp_path / script).write_text(TOUCH)
    call = orjson.loads((tmp_path / "call.json").read_bytes())
    (tmp_path / "call.json").write_bytes(orjson.dumps({**call, **changes}))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as left:
        main(["replay", str(tmp_path)])

    printed = capsys.readouterr()
    assert (left.value.code, printed.err.count("\n")) == (code, 0 if code == 1 else 1)
    assert said in printed.err
    assert "\x1b" not in printed.out + printed.err
    assert not (tmp_path / "ran").exists()


def test_a_call_that_runs_on_none_of_the_devices_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, torch.tensor([-1.0]))
    monkeypatch.setattr(device_comparison, "refer", lambda call, dtype: ("no reference", False))

    code, out, err = leave(capsys, "replay", tmp_path, "--device", "tpux")

    assert code == 5
    assert "tpux          no device tpux" in out
    assert err.startswith("nanguard: aten.log.default ran on no device;") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("call.json", b"", "not JSON"),
        ("call.json", b"[" * 5_000_000, "more than the 4194304"),
        ("tensors.safetensors", b"numbers", "is no safetensors file"),
        ("tensors.safetensors", b"", "is no safetensors file"),
    ],
)
def test_a_damaged_bundle_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, complaint: str
) -> None:
    write(tmp_path, torch.tensor([-1.0]))
    (tmp_path / name).write_bytes(content)

    code, _, err = leave(capsys, "replay", tmp_path)

    assert (code, err.count("\n")) == (4, 1)
    assert err.startswith(f"nanguard: {tmp_path / name}") and complaint in err


def test_text_of_a_bundle_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = catch(torch.tensor([-1.0]).log, "aten.log.default")
    write_bundle(tmp_path, replace(call, saved=replace(call.saved, device="\x1b]0;owned\x07", module="a\x9b2J")))

    code, out, _ = leave(capsys, "replay", tmp_path, "--device", "cpu")

    assert code == 1
    assert "\\x1b]0;owned\\x07" in out and "a\\x9b2J" in out
    assert "\x1b" not in out and "\x9b" not in out


@pytest.mark.parametrize("name", ["none", "x" * 300])
def test_a_path_without_incident_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, _, err = leave(capsys, "replay", tmp_path / name)

    assert (code, err.count("\n")) == (4, 1)
    assert err.startswith(f"nanguard: {tmp_path / name}")


def test_without_any_device_the_cpu_reference_alone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, torch.tensor([1.0]))

    with pytest.raises(SystemExit) as left:
        main(["replay", str(tmp_path), "--device", "npu"])

    assert left.value.code == 5
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-2:] == [
        "npu           no device npu: No module named 'torch_npu'",
        "cpu, float64  finite",
    ]
    assert printed.err == (
        "nanguard: aten.log.default ran on no device; the lines above say why; name other devices with --device\n"
    )


def test_replay_without_torch_is_an_error_of_one_line(tmp_path: Path) -> None:
    probe = (
        "import sys; sys.modules['torch'] = None; "
        f"from megatron_nanguard.cli import main; main(['replay', {str(tmp_path)!r}])"
    )

    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)

    assert result.returncode == 5
    assert result.stderr.startswith("nanguard: a call can only be run where torch is installed: ")
    assert result.stderr.count("\n") == 1
