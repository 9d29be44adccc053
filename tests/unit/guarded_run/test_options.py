"""Options on a command line that Megatron parses, and in the environment."""

from __future__ import annotations

import argparse

import pytest

from megatron_nanguard.guarded_run.options import Options
from megatron_nanguard.settings import Settings


def parsed(*arguments: str) -> Options:
    """The options after a command line was parsed."""
    found, parser = Options(), argparse.ArgumentParser(prog="pretrain_gpt.py")
    found.add_to(parser)
    parser.parse_args(arguments)
    return found


def test_options_are_read_when_megatron_parses_them() -> None:
    found = parsed("--nanguard", "--nanguard-on-nonfinite", "skip", "--nanguard-max-skips", "2/9")
    assert found.settings == Settings(on=True, on_nonfinite="skip", max_skips=(2, 9))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nanguard-norms", "all"], "error: --nanguard-norms: 'all' is not one of param, bucket"),
        (["--nanguard-drill", "nan@step=1"], "error: --nanguard-drill needs --nanguard"),
        (["--nanguard", "--nanguard-drill", "nan@step=0"], "error: --nanguard-drill: steps count from 1"),
        (
            ["--nanguard", "--nanguard-drill", "nan@step=1,rank=9,phase=forward,module=first"],
            "error: --nanguard-drill: drill 'nan@step=1,rank=9,phase=forward,module=first': rank 9 does not exist",
        ),
    ],
)
def test_a_mistake_is_an_error_of_the_command_line_that_names_the_flag(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 2
    assert f"pretrain_gpt.py: {complaint}" in capsys.readouterr().err


def test_a_bad_variable_is_an_error_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NANGUARD_DEADLINE", "soon")
    with pytest.raises(SystemExit):
        parsed("--nanguard")
    assert "error: NANGUARD_DEADLINE: 'soon' is not" in capsys.readouterr().err


def test_without_a_command_line_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Options()
    monkeypatch.setenv("NANGUARD", "1")
    monkeypatch.setenv("NANGUARD_SCALER_SKIPS", "3")
    assert found.known() == Settings(on=True, scaler_skips=3)
    monkeypatch.setenv("NANGUARD_SCALER_SKIPS", "4")
    assert found.known().scaler_skips == 3
