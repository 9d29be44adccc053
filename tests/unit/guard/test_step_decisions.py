"""fp16 under guard: when overflow is the loss scaler's work, when that is checked far below its scale, and how."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.postmortem.loading import load_incident
from megatron_nanguard.replay.in_place import DecisionPoint
from tests.unit.conftest import Log
from tests.unit.guarded import Install
from tests.unit.one_rank import ONES, Trainer, trainer

# The largest gradient is 7 * scale * factor, and fp16 ends at 65504: 1000 fits at a scale of 8 and not at 16; 1e5 does
# not fit at 0.5 either, but at 8 / 256. The loss, in fp32, is finite with all of them.
FITS, FITS_8, OVERFLOWS = 1.0, 1e3, 1e5


def fp16(**options: Any) -> Trainer:
    """A trainer with a dynamic loss scale of 8 that every overflow halves."""
    base = {"initial_loss_scale": 8.0, "min_loss_scale": 0.001, "hysteresis": 1}
    return trainer(fp16=True, optimizer="adam", **{**base, **options})


def fp16_steps(made: Trainer, *factors: float) -> list[bool]:
    """One step with each factor; which were applied."""
    return [fp16_step(made, lambda output, factor=factor: (output.sum() * factor, {})) for factor in factors]


def fp16_step(made: Trainer, loss: Callable[..., Any], inputs: Sequence[Any] = (ONES,)) -> bool:
    made.forward_backward(inputs, loss=loss)
    applied, _ = made.step()
    return applied


def nan_gradient(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """A finite loss whose gradient is 0 * inf at any scale."""
    return (output * 0).sqrt().sum(), {}


def scale_of(made: Trainer) -> float:
    (leaf,) = made.optimizer.chained_optimizers
    return float(leaf.grad_scaler.scale)


def test_an_overflow_that_is_finite_far_below_the_scale_is_a_skip_that_leaves_nothing(
    install: Install, tmp_path: Path, log: Log
) -> None:
    unguarded = fp16(ddp={"check_for_nan_in_grad": False})
    assert fp16_steps(unguarded, FITS, OVERFLOWS, FITS) == [True, False, True]
    found, made = install(), fp16()
    said = len(log.messages)
    assert fp16_steps(made, FITS, OVERFLOWS, FITS) == [True, False, True]
    assert found.counts() == (3, 1, 0)
    assert found.guard.counts["scale_checks"] == 1
    assert (made.weights(), scale_of(made)) == (unguarded.weights(), 4.0)
    assert not list(tmp_path.glob("runs/*/incidents"))
    assert log.messages[said:] == ["step 2: overflow, finite at 1/256 of the loss scale: a skip of the loss scaler"]


def test_a_gradient_that_is_bad_at_any_scale_is_an_incident_at_its_first_step(install: Install, tmp_path: Path) -> None:
    found, made = install(), fp16()
    assert fp16_steps(made, FITS) == [True]
    assert not fp16_step(made, nan_gradient)
    assert fp16_steps(made, FITS) == [True]
    assert found.counts() == (3, 1, 1)
    incident = load_incident(tmp_path).incident
    assert (incident.step, incident.replay.lower_scale, incident.policy.action) == (2, "bad", "skip")
    assert incident.replay.stages[0].startswith("loss scale / 256: ")
    assert [stage for stage in incident.replay.stages if stage.startswith("loss scale")] == [incident.replay.stages[0]]


def test_one_check_at_most_per_window_of_the_loss_scale(install: Install) -> None:
    found, made = install(), fp16(loss_scale_window=3)
    seen = []
    for factor in (FITS, *5 * [OVERFLOWS]):
        fp16_steps(made, factor)
        seen.append(found.guard.counts["scale_checks"])
    assert seen == [0, 1, 1, 1, 2, 2]
    assert found.counts() == (6, 5, 0)


@pytest.mark.parametrize("hysteresis", [1, 2])
def test_a_scale_just_raised_is_not_checked(install: Install, hysteresis: int) -> None:
    found, made = install(), fp16(loss_scale_window=2, hysteresis=hysteresis)
    # Raised to 16 by the second step; with a hysteresis of 2 it takes two overflows to bring it down again.
    assert fp16_steps(made, *4 * [FITS_8]) == [True, True, False, hysteresis == 1]
    assert found.guard.counts["scale_checks"] == 0
    assert scale_of(made) == 8.0


def test_the_search_for_the_first_scale_is_not_checked(install: Install) -> None:
    found, made = install(scaler_skips=2), fp16()
    assert fp16_steps(made, *4 * [OVERFLOWS]) == 4 * [False]
    assert found.counts() == (4, 4, 0)
    assert found.guard.counts["scale_checks"] == 0


def test_without_a_replay_overflow_is_counted_and_the_nth_in_a_row_is_an_incident(
    install: Install,
) -> None:
    found, made = install(scaler_skips=2, replay="off"), fp16()
    seen = []
    for factor in (FITS, OVERFLOWS, OVERFLOWS, FITS):
        seen.append((*fp16_steps(made, factor), found.guard.counts["incidents"]))
    assert seen == [(True, 0), (False, 0), (False, 1), (True, 1)]
    assert found.guard.counts["scale_checks"] == 0
    assert scale_of(made) == 2.0


class Uncopyable:
    """A micro-batch that no recorder can keep."""

    def __copy__(self) -> Any:
        raise TypeError("not to be copied")

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        return ONES.to(dtype)


def test_a_step_that_cannot_be_run_again_stays_a_counted_skip(install: Install, tmp_path: Path, log: Log) -> None:
    found, made = install(), fp16()
    said = len(log.messages)
    assert fp16_steps(made, FITS) == [True]
    assert not fp16_step(made, nan_gradient, [Uncopyable()])
    assert found.counts() == (2, 1, 0)
    assert found.guard.counts["scale_checks"] == 0
    assert log.messages[said:] == []
    assert not list(tmp_path.glob("runs/*/incidents"))


def test_a_step_that_is_not_restored_after_a_check_ends_the_process_with_its_evidence(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(Watchdog.__init__, "__defaults__", (codes.append,))
    monkeypatch.setattr(DecisionPoint, "put_back", lambda point: ("parameters",))
    install()
    made = fp16()
    fp16_steps(made, FITS)
    with pytest.raises(ReplayError, match="after the check at a lower scale not as it was bit for bit: parameters"):
        fp16_steps(made, OVERFLOWS)
    assert codes == [65]
    (written,) = tmp_path.glob("runs/*/incidents/step_00000002/*.json")
    assert json.loads(written.read_bytes())["phase"] == "signal"
