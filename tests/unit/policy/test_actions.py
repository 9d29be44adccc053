"""How a decision is carried out.

A skip of ours leaves the loss scaler as Megatron's own skip does, whatever this rank found itself.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.policy.actions import skip
from tests.unit.one_rank import Trainer, trainer


def fp16() -> Trainer:
    """Growth after two clean steps, hysteresis two, scale 8 down to 1."""
    return trainer(
        fp16=True, initial_loss_scale=8.0, min_loss_scale=1.0, loss_scale_window=2, hysteresis=2, optimizer="adam"
    )


def scaler_of(made: Trainer) -> Any:
    (leaf,) = made.optimizer.chained_optimizers
    return leaf.grad_scaler


def state(scaler: Any) -> tuple[float, int, int]:
    return float(scaler.scale), scaler._growth_tracker, scaler._hysteresis_tracker


def run(made: Trainer, bad: str, *, guarded: bool) -> list[tuple[float, int, int]]:
    """One step per letter; ``x`` has an Inf that Megatron sees, ``o`` one that only another rank has."""
    seen = []
    for step in bad:
        made.forward_backward()
        if step == "x":
            made.net.first.weight.main_grad[0, 0] = math.inf
        if guarded and step != ".":
            assert skip(made.optimizer.prepare_grads, made.optimizer, Shield()) is True
        else:
            made.optimizer.prepare_grads()
        seen.append(state(scaler_of(made)))
    return seen


def test_a_skip_of_what_megatron_found_too_is_megatrons_own(megatron: Any) -> None:
    assert run(fp16(), "x.xx..x", guarded=True) == run(fp16(), "x.xx..x", guarded=False)


def test_a_rank_that_found_nothing_backs_off_like_its_peers(megatron: Any) -> None:
    here, peer = run(fp16(), "o.oo..o", guarded=True), run(fp16(), "x.xx..x", guarded=False)
    assert here == peer
    # By hand: hysteresis 2, growth after 2.
    assert here == [(8, 0, 1), (8, 1, 1), (4, 0, 0), (2, 0, -1), (2, 1, -1), (4, 0, 2), (4, 0, 1)]


def test_a_growth_that_fell_on_the_skipped_step_is_taken_back(megatron: Any) -> None:
    made = fp16()
    run(made, ".", guarded=True)
    run(made, "o", guarded=True)
    assert state(scaler_of(made)) == (8, 0, 1)


def test_without_a_scaler_only_the_answer_changes(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    assert skip(made.optimizer.prepare_grads, made.optimizer, Shield()) is True
    assert made.weights() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_constant_scale_stays(megatron: Any) -> None:
    made = trainer(fp16=True, loss_scale=4.0, optimizer="adam")
    made.forward_backward()
    assert skip(made.optimizer.prepare_grads, made.optimizer, Shield()) is True
    assert float(scaler_of(made).scale) == 4.0


def test_a_scaler_that_two_leaves_share_is_updated_once(megatron: Any) -> None:
    scaler = scaler_of(fp16())
    leaf = SimpleNamespace(grad_scaler=scaler)
    chained = SimpleNamespace(chained_optimizers=[leaf, SimpleNamespace(grad_scaler=scaler)])
    skip(lambda: False, chained, Shield())
    assert state(scaler) == (8, 0, 1)


def test_of_two_leaves_only_the_one_that_overflowed_backs_off_as_in_megatrons_own_skip(megatron: Any) -> None:
    bad, good = scaler_of(fp16()), scaler_of(fp16())
    chained = SimpleNamespace(chained_optimizers=[SimpleNamespace(grad_scaler=bad), SimpleNamespace(grad_scaler=good)])

    def prepare() -> bool:
        bad.update(True)
        good.update(False)
        return True

    skip(prepare, chained, Shield())
    assert (state(bad), state(good)) == ((8, 0, 1), (8, 1, 2))


@pytest.mark.parametrize("found", [True, False])
def test_the_hosts_own_preparation_runs_either_way(megatron: Any, found: bool) -> None:
    calls: list[int] = []
    skip(lambda: calls.append(1) is None and found, SimpleNamespace(grad_scaler=None), Shield())
    assert calls == [1]


# ---------------------------------------------------------------------- leaving, seen from outside

IMPORT = "from megatron_nanguard.policy import actions\n"


def leaving(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", IMPORT + code], capture_output=True, text=True, timeout=50)


def test_the_host_cleans_up_and_the_code_is_65() -> None:
    done = leaving("import atexit\natexit.register(print, 'cleaned up')\nactions.abort(patience=30.0)")
    assert (done.returncode, done.stdout) == (65, "cleaned up\n")


def test_a_host_that_hangs_in_its_clean_up_is_left_all_the_same() -> None:
    began = time.monotonic()
    code = (
        "import atexit, time\nprint('last words', end='')\natexit.register(time.sleep, 45)\nactions.abort(patience=0.2)"
    )
    done = leaving(code)
    assert (done.returncode, done.stdout) == (65, "last words")
    assert time.monotonic() - began < 40


def test_a_host_that_catches_the_exit_is_left_all_the_same() -> None:
    done = leaving("import time\ntry:\n    actions.abort(patience=0.2)\nexcept SystemExit:\n    time.sleep(45)")
    assert done.returncode == 65
