"""A watch on real Megatron: no bit changes, and a backward that goes wrong alone is found on its rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.import_server import Server
from tests.ranks.conftest import EndStates
from tests.ranks.layouts import LAYOUTS
from tests.ranks.run_files import RunFiles
from tests.ranks.test_healthy import differences

pytestmark = pytest.mark.ranks

WATCHED = Path(__file__).with_name("watched.py")
NO_CHECK = "--no-check-for-nan-in-loss-and-grad"


def watch(ranks: Server, layout: str, folder: Path, **env: str) -> str:
    """Train three steps; what was printed."""
    chosen = LAYOUTS[layout].plus(NO_CHECK)
    finished = ranks.run(chosen.nproc, WATCHED, chosen.args, env={"END_STATE_DIR": str(folder), **env}, cwd=folder)
    assert finished.code == 0, finished.out
    return str(finished.out)


@pytest.mark.parametrize(
    "layout", ["D1", *(pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS if name != "D1")]
)
def test_a_run_with_every_module_watched_is_bit_identical(
    ranks: Server, end_states: EndStates, tmp_path: Path, layout: str
) -> None:
    printed = watch(ranks, layout, tmp_path, WATCHED=".")
    assert "watch:" not in printed
    for rank, plain in enumerate(end_states(layout).stock.ranks):
        watched = torch.load(tmp_path / f"rank{rank}.pt")
        assert differences(plain["state"], watched["state"]) == [], f"rank {rank}"
    assert not (tmp_path / "watch").exists()


@pytest.mark.parametrize("layout", ["A", pytest.param("AR", marks=pytest.mark.long)])
def test_a_gelu_that_is_wrong_in_its_backward_alone_is_found(ranks: Server, tmp_path: Path, layout: str) -> None:
    printed = watch(ranks, layout, tmp_path, WATCHED=r"mlp\.activation_func$", FAULTY_RANK="5")
    [file] = (tmp_path / "watch").iterdir()
    assert file.name == "rank00005_step00000002.pt"
    hit = torch.load(file, weights_only=True)
    assert (hit["module"], hit["phase"], hit["call"]) == ("decoder.layers.3.mlp.activation_func", "backward", 0)
    (gradient,) = hit["grad_input"].values()
    (arrived,) = hit["grad_output"].values()
    (entered,) = hit["inputs"].values()
    assert torch.equal(gradient.isnan(), entered > 0.01)
    assert arrived.isfinite().all()
    assert "watch: step 2, rank 5: backward of decoder.layers.3.mlp.activation_func: grad_input 0: " in printed


def test_the_same_is_found_by_the_flags_of_a_guarded_run(ranks: Server, tmp_path: Path) -> None:
    flags = ("--nanguard", "--nanguard-dir", str(tmp_path), "--nanguard-on-nonfinite", "skip")
    watch = ("--nanguard-watch", r"mlp\.activation_func$", "--nanguard-watch-steps", "2:3")
    env = {"END_STATE_DIR": str(tmp_path), "FAULTY_RANK": "0"}

    finished = ranks.run(
        1, WATCHED, LAYOUTS["D1"].plus(*flags, *watch).args, env=env, in_rank="megatron_nanguard:enable", cwd=tmp_path
    )

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000002", "step_00000003"]
    [file] = (run.path / "watch").iterdir()
    hit = torch.load(file, weights_only=True)
    assert (hit["step"], hit["module"], hit["phase"]) == (2, "decoder.layers.3.mlp.activation_func", "backward")
    assert all(hit["outputs"][name].isfinite().all() for name in hit["outputs"])
    assert f"watch: step 2, rank 0: backward of {hit['module']}: grad_input 0: " in finished.out
    assert finished.out.count("watch: ") == 1, "once for a run"
