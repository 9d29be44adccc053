"""Bundles without torch: they are found, get the cause of the incident, and are redacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.bundles import find_bundle, redact, write_cause
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.run.fingerprint import REDACTED, Fingerprint
from megatron_nanguard.records.step.capture import CapturedBatch, CapturedItem, CapturedIterator, CaptureFile, Leaf
from megatron_nanguard.records.suspect_call import Argument, SavedCall, Value
from tests.unit.factories import capture_file

STEP = "runs/run/incidents/step_00000003"


def write_bundle(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "call.json").write_bytes(to_json(SavedCall(rank=5, operator="aten.log.default")))
    (directory / "tensors.safetensors").write_bytes(b"numbers")
    (directory / "repro.py").write_text("print()")
    return directory


def call_of(directory: Path) -> SavedCall:
    return from_json(SavedCall, (directory / "call.json").read_bytes())


@pytest.mark.parametrize("given", ["", "runs/run", STEP, f"{STEP}/bundle"])
def test_a_bundle_is_found_under_any_of_its_parents(tmp_path: Path, given: str) -> None:
    bundle = write_bundle(tmp_path / STEP / "bundle")
    (tmp_path / STEP / "rank00005_tp1pp1dp0.json").write_text("{}")

    assert find_bundle(tmp_path / given) == bundle


def test_the_error_for_an_incident_without_bundle_gives_the_possible_reasons(tmp_path: Path) -> None:
    (tmp_path / STEP).mkdir(parents=True)
    (tmp_path / STEP / "rank00005_tp1pp1dp0.json").write_text("{}")

    with pytest.raises(PostmortemError, match=r"has no bundle/: no origin was found, or nothing was captured$"):
        find_bundle(tmp_path)


def test_the_verdict_is_written_into_the_call(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle")

    write_cause(bundle, "hardware_transient")

    assert call_of(bundle) == SavedCall(rank=5, operator="aten.log.default", cause="hardware_transient")
    assert sorted(path.name for path in bundle.iterdir()) == ["call.json", "repro.py", "tensors.safetensors"]


def test_a_verdict_that_cannot_be_written_leaves_the_bundle_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    bundle = write_bundle(tmp_path / "bundle")
    monkeypatch.setattr("os.replace", fail)

    with pytest.raises(OSError, match="No space left"):
        write_cause(bundle, "hardware_transient")
    assert call_of(bundle) == SavedCall(rank=5, operator="aten.log.default")
    assert sorted(path.name for path in bundle.iterdir()) == ["call.json", "repro.py", "tensors.safetensors"]


def test_redacting_strips_tensors_and_marks_the_call(tmp_path: Path) -> None:
    bundle, sent = write_bundle(tmp_path / STEP / "bundle"), write_bundle(tmp_path / STEP / "peer/rank00005")
    (bundle / "full.safetensors").write_bytes(b"numbers")
    watch = tmp_path / "runs/run/watch"
    watch.mkdir()
    (watch / "rank00000.pt").write_bytes(b"numbers")

    changed = {str(path.relative_to(tmp_path)) for path in redact(tmp_path)}

    assert changed == {
        f"{STEP}/bundle/call.json",
        f"{STEP}/bundle/full.safetensors",
        f"{STEP}/bundle/tensors.safetensors",
        f"{STEP}/peer/rank00005/call.json",
        f"{STEP}/peer/rank00005/tensors.safetensors",
        "runs/run/watch/rank00000.pt",
    }
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"numbers" in path.read_bytes()] == []
    assert call_of(bundle).is_redacted and call_of(sent).is_redacted


def test_redacting_leaves_checkpoints_and_what_links_point_to_alone(tmp_path: Path) -> None:
    """A user may give the save directory instead of the one inside it."""
    checkpoint = tmp_path / "iter_0000100" / "mp_rank_00" / "model_optim_rng.pt"
    checkpoint.parent.mkdir(parents=True)
    weights = tmp_path / "model.safetensors"
    watched = tmp_path / "watch" / "mine.pt"
    watched.parent.mkdir()
    for path in (checkpoint, weights, watched):
        path.write_bytes(b"mine")
    bundle = write_bundle(tmp_path / "nanguard" / STEP / "bundle")
    (bundle / "full.safetensors").symlink_to(weights)

    changed = [path.name for path in redact(tmp_path)]

    assert changed == ["call.json", "tensors.safetensors"]
    assert [path.read_bytes() for path in (checkpoint, weights, watched)] == [b"mine"] * 3


def test_redacting_a_path_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PostmortemError, match=r"is no directory; give the directory of --nanguard-dir"):
        list(redact(tmp_path / "nothing"))


def write_capture(directory: Path) -> Path:
    """What a rank saved of a step, with sample text in it."""
    item = CapturedItem((Leaf((), "dict"), Leaf(('"id"',), "str", "a sample"), Leaf(('"n"',), "int", "7")))
    record = capture_file(
        level="step",
        num_microbatches=1,
        batch=CapturedBatch((CapturedIterator((item,)),), (0,)),
    )
    directory.mkdir(parents=True)
    (directory / "rank00005.json").write_bytes(to_json(record))
    (directory / "rank00005.safetensors").write_bytes(b"numbers")
    return directory / "rank00005.json"


def test_redacting_strips_tensors_and_sample_text_of_a_captured_step(tmp_path: Path) -> None:
    path = write_capture(tmp_path / STEP / "capture")

    changed = [str(each.relative_to(tmp_path / STEP)) for each in redact(tmp_path)]

    assert changed == ["capture/rank00005.json", "capture/rank00005.safetensors"]
    assert [each.name for each in path.parent.iterdir()] == ["rank00005.json"]
    record = from_json(CaptureFile, path.read_bytes())
    assert record.is_redacted
    assert [leaf.text for leaf in record.batch.iterators[0].items[0].leaves] == ["", "", "7"]
    assert list(redact(tmp_path)) == [path]


def test_redacting_leaves_tensor_files_alone_that_belong_to_no_capture(tmp_path: Path) -> None:
    alone = tmp_path / "capture" / "rank00005.safetensors"
    alone.parent.mkdir()
    alone.write_bytes(b"mine")
    (tmp_path / "capture" / "model.json").write_text("{}")
    assert list(redact(tmp_path)) == []
    assert alone.read_bytes() == b"mine"


def test_redacting_leaves_no_text_that_the_user_gave_as_an_argument(tmp_path: Path) -> None:
    run = tmp_path / "runs/run"
    run.mkdir(parents=True)
    fingerprint = Fingerprint(
        run_id="run",
        started="2026-01-01T00:00:00Z",
        world_size=8,
        versions={"torch": "2.14.0"},
        arguments={
            "lr": "0.001",
            "wandb_key": "SECRET",
            "bf16": "True",
            "transformer_impl": "local",
            "blend": "[1, 2]",
        },
        environment={},
        kernel_backends={},
        host_changes=(),
        command_line=("SECRET.py", "--lr", "1e-3", "--key", "SECRET", "--token=SECRET", "--layers=2"),
    )
    (run / "fingerprint.json").write_bytes(to_json(fingerprint))
    bundle = write_bundle(tmp_path / STEP / "bundle")
    given = (Argument("name", (Value("str", "SECRET"),)), Argument("eps", (Value("float", "1e-05"),)))
    call = SavedCall(rank=5, operator="Mine.forward", kind="forward", args=given, kwargs=given, grad_outputs=given)
    (bundle / "call.json").write_bytes(to_json(call))

    assert len(list(redact(tmp_path))) == 3

    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()] == []
    left = from_json(Fingerprint, (run / "fingerprint.json").read_bytes())
    assert left.arguments == {
        "lr": "0.001",
        "wandb_key": REDACTED,
        "bf16": "True",
        "transformer_impl": "local",
        "blend": "[1, 2]",
    }
    assert left.command_line == (*(REDACTED, "--lr", "1e-3", "--key", REDACTED, f"--token={REDACTED}", "--layers=2"),)
    assert [argument.values[0].text for argument in call_of(bundle).args] == ["", "1e-05"]


def test_redacting_deletes_what_a_killed_process_left_half_written(tmp_path: Path) -> None:
    left = [
        f"{STEP}/bundle/tensors.safetensors",
        f"{STEP}/bundle/.full.safetensors.1234",
        f"{STEP}/bundle/.call.json.1234",
        f"{STEP}/peer/rank00005/tensors.safetensors",
        f"{STEP}/capture/rank00005.safetensors",
        f"{STEP}/capture/.rank00006.safetensors.77",
        "runs/run/watch/.rank00000_step00000001.pt.9",
        "runs/run/.fingerprint.json.5",
    ]
    mine = [".config.json.1", ".model.safetensors.3", "tensors.safetensors"]
    for name in (*left, *mine):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"numbers")

    assert sorted(str(path.relative_to(tmp_path)) for path in redact(tmp_path)) == sorted(left)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(mine)
