"""`--nanguard-watch` on one rank: the chosen modules, the chosen steps, one file and one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Module

from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.watching.watcher import Watcher
from tests.unit.conftest import Log
from tests.unit.watching.models import GOOD, STEEP, Block, leaf


def train(watcher: Watcher, model: Module, *inputs: tuple[float, ...]) -> None:
    """One step per input, from step 1 on."""
    for step, values in enumerate(inputs, start=1):
        watcher.step_begins(step)
        model(leaf(values)).sum().backward()
        watcher.step_ends()


def has_hooks(model: Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_first_bad_values_of_a_rank_are_saved_and_logged(tmp_path: Path, log: Log) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "mlp", None, None, rank=5, directory=tmp_path)
    assert watcher.num_modules == 4
    train(watcher, model, GOOD, STEEP, STEEP)
    file = tmp_path / "watch" / "rank00005_step00000002.pt"
    assert log.messages == [
        "watch: step 2, rank 5: backward of mlp.activation: grad_input 0: 1 NaN of 2, first at [1]; "
        f"grad_output was finite; saved in {file}"
    ]
    assert list(file.parent.iterdir()) == [file]
    content = torch.load(file, weights_only=True)
    assert (content["module"], content["phase"], content["step"], content["call"]) == (
        "mlp.activation",
        "backward",
        2,
        0,
    )
    assert content["inputs"]["0"].tolist() == [2.0, 12.0]
    assert content["grad_output"][""].tolist() == [5.0, 7.0]
    assert not has_hooks(model)


def test_a_healthy_run_writes_and_says_nothing(tmp_path: Path, log: Log) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "mlp", None, None, rank=0, directory=tmp_path)
    train(watcher, model, GOOD, GOOD)
    assert (log.messages, list(tmp_path.iterdir()), watcher.hit) == ([], [], None)


@pytest.mark.parametrize(("steps", "found"), [((1, 2), None), ((2, 3), 3), ((3, 3), 3), ((4, 9), 4)])
def test_only_the_chosen_steps_are_watched_both_ends_included(
    steps: tuple[int, int], found: int | None, tmp_path: Path, log: Log
) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "activation", steps, None, rank=0, directory=tmp_path)
    train(watcher, model, GOOD, GOOD, STEEP, STEEP)
    assert (None if watcher.hit is None else watcher.hit.step) == found


def test_outside_of_the_chosen_steps_there_is_neither_hook_nor_host_read(
    tmp_path: Path, host_reads: Callable[[Callable[[], Any]], int]
) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "activation", (2, 2), None, rank=0, directory=tmp_path)

    def step(number: int) -> bool:
        watcher.step_begins(number)
        hooked = has_hooks(model)
        model(leaf(GOOD)).sum().backward()
        watcher.step_ends()
        return hooked

    assert not has_hooks(model)
    assert [step(number) for number in (1, 2, 3)] == [False, True, False]
    assert not has_hooks(model)
    assert [host_reads(lambda: step(number)) for number in (1, 2, 3)] == [0, 2, 0]  # noqa: B023


def test_a_step_that_is_begun_again_counts_from_zero(tmp_path: Path) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "activation", None, None, rank=0, directory=tmp_path)
    watcher.step_begins(7)
    model(leaf(GOOD))
    watcher.step_begins(7)
    model(leaf(STEEP)).sum().backward()
    assert watcher.hit is not None
    assert (watcher.hit.step, watcher.hit.call) == (7, 0)


def test_a_graph_of_an_ended_step_is_not_looked_at(tmp_path: Path) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "activation", None, None, rank=0, directory=tmp_path)
    watcher.step_begins(1)
    loss = model(leaf(STEEP)).sum()
    watcher.step_ends()
    loss.backward()
    assert watcher.hit is None


def test_a_rank_that_does_not_log_still_saves_its_file(tmp_path: Path, log: Log) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "mlp", None, None, rank=1, directory=tmp_path, speaks=lambda: False)
    train(watcher, model, STEEP)
    assert log.messages == []
    assert (tmp_path / "watch" / "rank00001_step00000001.pt").exists()


def test_a_directory_that_cannot_be_written_is_named_in_the_log(tmp_path: Path, log: Log) -> None:
    (tmp_path / "watch").write_text("in the way")
    model = Block()
    watcher = Watcher(name_modules([model]), "mlp", None, None, rank=0, directory=tmp_path)
    train(watcher, model, STEEP)
    (message,) = log.messages
    file = tmp_path / "watch" / "rank00000_step00000001.pt"
    assert message.endswith(f"grad_output was finite; not saved: {file}: File exists")


def test_a_full_disk_and_a_hung_one_are_named_in_the_log(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    file = tmp_path / "watch" / "rank00000_step00000001.pt"
    for write, outcome in (
        ((lambda name, save: save()), f"not saved: {file}: PytorchStreamWriter failed writing file data/0: file write"),
        ((lambda name, save: None), f"not saved in time: {file}"),
    ):
        monkeypatch.setattr(torch, "save", full)
        model, shield = Block(), Shield()
        watcher = Watcher(
            name_modules([model]), "mlp", None, None, rank=0, directory=tmp_path, guarded=shield, write=write
        )
        train(watcher, model, STEEP)
        assert outcome in log.messages[-1]
        assert shield.fault is None, "a disk is no fault of ours"


def test_a_fault_of_ours_stays_inside_the_shield(tmp_path: Path, log: Log) -> None:
    """A tensor without values must not end the host's forward."""

    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to("meta")

    model = torch.nn.Sequential(Odd())
    shield = Shield()
    watcher = Watcher(name_modules([model]), "0", None, None, rank=0, directory=tmp_path, guarded=shield)
    watcher.step_begins(1)
    assert model(torch.ones(2)).is_meta
    assert shield.fault is not None
    assert shield.fault.startswith("watch: ")


def test_a_stage_without_such_a_module_watches_nothing(tmp_path: Path) -> None:
    model = Block()
    watcher = Watcher(name_modules([model]), "embedding", None, None, rank=0, directory=tmp_path)
    assert watcher.num_modules == 0
    train(watcher, model, STEEP)
    assert watcher.hit is None
