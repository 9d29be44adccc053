"""What the host says of itself, and its NaN checks off and on again."""

from __future__ import annotations

import enum
import importlib.metadata
import platform
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.host_program import mend_help_texts
from megatron_nanguard.records.run.fingerprint import HostChange
from tests.unit.one_rank import trainer

WHY = "it would raise on one rank alone; the guard takes the check over"


@pytest.fixture
def arguments(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Megatron's global arguments, as its argument parser leaves them."""
    from megatron.training import global_vars

    found = Namespace(save=None)
    monkeypatch.setattr(global_vars, "_GLOBAL_ARGS", found)
    return found


def test_the_version_is_what_the_sources_on_the_path_say(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import megatron.core.package_info

    installed = importlib.metadata.version("megatron-core")
    assert (host_program.core_version() or "").split("+")[0] == installed
    monkeypatch.setattr(megatron.core.package_info, "__version__", "0.15.0rc7")
    assert host_program.core_version() == host_program.versions()["megatron-core"] == "0.15.0rc7"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("MAJOR = 0\nMINOR = 8\nPATCH = 0\nPRE_RELEASE = ''\n", "0.8.0"),
        ("MAJOR=0\nMINOR=11\nPATCH=3\nimport no_such_module\n", "0.11.3"),
        ("VERSION = make()\n", None),
        (None, None),
    ],
)
def test_while_megatron_is_imported_the_version_is_read_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, version: str | None
) -> None:
    half_imported = ModuleType("megatron.core")
    half_imported.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "megatron.core", half_imported)
    monkeypatch.delitem(sys.modules, "megatron.core.package_info", raising=False)
    if text is not None:
        (tmp_path / "package_info.py").write_text(text, encoding="utf-8")
    assert host_program.core_version() == version


def test_versions_name_only_what_is_installed() -> None:
    found = host_program.versions()
    assert found["torch"] == importlib.metadata.version("torch")
    assert found["python"] == platform.python_version()
    assert "torch-npu" not in found


def test_without_megatron_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    assert host_program.core_version() is None
    assert host_program.arguments() is None
    assert (host_program.log_step(), host_program.save_directory(), host_program.kernel_backends()) == (None, None, {})
    assert not host_program.trainer_tolerates_skips()


def test_the_step_is_the_one_that_the_log_prints(arguments: Namespace) -> None:
    assert host_program.log_step() is None
    arguments.curr_iteration = 0
    assert host_program.log_step() == 1
    arguments.curr_iteration = 122
    assert host_program.log_step() == 123


def test_the_save_directory_is_the_arguments(arguments: Namespace) -> None:
    assert host_program.save_directory() is None
    arguments.save = "/data/checkpoints"
    assert host_program.save_directory() == "/data/checkpoints"


def test_kernel_backends_are_those_the_arguments_choose(arguments: Namespace) -> None:
    arguments.transformer_impl = "local"
    arguments.optimizer = "adam"
    assert host_program.kernel_backends() == {"transformer_impl": "local", "optimizer": "adam"}


def test_the_bucket_check_is_switched_off_and_restored(megatron: Any) -> None:
    import megatron.core.rerun_state_machine  # noqa: F401

    made, checks = trainer(), host_program.HostChecks()
    made.net.first.weight.data.fill_(torch.nan)
    with pytest.raises(RuntimeError, match="grad norm"):
        made.forward_backward()
    checks.switch_off([made.ddp])
    made.forward_backward()
    assert checks.changes() == (HostChange("check_for_nan_in_grad", "True", "False", WHY),)
    checks.restore()
    assert made.ddp.ddp_config.check_for_nan_in_grad is True
    assert checks.changes() == ()


def test_a_check_that_was_off_is_not_changed(megatron: Any) -> None:
    made, checks = trainer(ddp={"check_for_nan_in_grad": False}), host_program.HostChecks()
    checks.switch_off([made.ddp])
    assert checks.changes() == ()
    checks.restore()
    assert made.ddp.ddp_config.check_for_nan_in_grad is False


def test_two_chunks_of_one_config_are_one_change(megatron: Any) -> None:
    made, other, checks = trainer(), trainer(), host_program.HostChecks()
    checks.switch_off([made.ddp, other.ddp])
    assert len(checks.changes()) == 1
    checks.restore()
    assert made.ddp.ddp_config.check_for_nan_in_grad
    assert other.ddp.ddp_config.check_for_nan_in_grad


def test_without_a_rerun_machine_the_scripts_loss_check_is_switched_off_too(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments.check_for_nan_in_loss_and_grad = True
    checks = host_program.HostChecks()
    monkeypatch.delitem(sys.modules, "megatron.core.rerun_state_machine", raising=False)
    checks.switch_off([])
    assert arguments.check_for_nan_in_loss_and_grad is False
    checks.restore()
    assert arguments.check_for_nan_in_loss_and_grad is True


def test_with_a_rerun_machine_the_scripts_loss_check_goes_on(arguments: Namespace) -> None:
    import megatron.core.rerun_state_machine  # noqa: F401

    arguments.check_for_nan_in_loss_and_grad = True
    host_program.HostChecks().switch_off([])
    assert arguments.check_for_nan_in_loss_and_grad is True


def test_only_known_trainers_tolerate_skips(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "megatron.training.training", raising=False)
    assert not host_program.trainer_tolerates_skips()
    import megatron.training.training  # noqa: F401

    assert host_program.trainer_tolerates_skips()


def test_arguments_are_returned_as_text(arguments: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments.overlap_grad_reduce, arguments.recompute_granularity = True, None
    arguments.attention_backend = enum.Enum("Backend", "unfused auto").auto  # type: ignore[attr-defined]
    names = ("overlap_grad_reduce", "recompute_granularity", "attention_backend", "unknown")
    assert host_program.option_values(names) == {
        "overlap_grad_reduce": "True",
        "recompute_granularity": "None",
        "attention_backend": "auto",
    }
    monkeypatch.setattr(host_program, "arguments", lambda: None)
    assert host_program.option_values(names) == {}


def test_a_lone_percent_sign_no_longer_breaks_the_help() -> None:
    parser = ArgumentParser(prog="train")
    parser.add_argument("--factor", default=7, help="headroom (1.10 = 10%), default %(default)s, %%")
    with pytest.raises(ValueError, match="unsupported format character"):
        parser.format_help()

    mend_help_texts(parser)
    mend_help_texts(parser)

    assert "headroom (1.10 = 10%), default 7, %" in parser.format_help()
