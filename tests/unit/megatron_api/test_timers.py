"""Timers count a step once, however often it is run again."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.megatron_api import timers


@pytest.fixture
def clock(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's own timers, where its training loop has them."""
    from megatron.core.timers import Timers
    from megatron.training import global_vars

    made = Timers(log_level=2, log_option="minmax")
    monkeypatch.setattr(global_vars, "_GLOBAL_TIMERS", made)
    return made


def test_a_pass_that_is_run_again_is_not_counted(clock: Any) -> None:
    clock("forward-backward", log_level=0).start()
    clock("forward-backward").stop()
    clock("optimizer", log_level=0).start()
    counted = clock._timers["forward-backward"]._elapsed
    put_back = timers.keep()
    clock("forward-backward").start()
    clock("forward-backward").stop()
    clock("new", log_level=1).start()
    put_back()
    assert clock._timers["forward-backward"]._elapsed == counted
    assert list(clock._timers) == ["forward-backward", "optimizer"]
    clock("optimizer").stop()


def test_a_trainer_without_timers_has_nothing_to_keep(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.training import global_vars

    monkeypatch.setattr(global_vars, "_GLOBAL_TIMERS", None)
    timers.keep()()
