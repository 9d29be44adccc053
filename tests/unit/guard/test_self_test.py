"""What the guard says of a patch point that was replaced, or that a whole step did not call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from megatron_nanguard.guard.self_test import SelfTest
from megatron_nanguard.patching.point import Target
from tests.unit.patching.conftest import Host, host  # noqa: F401
from tests.unit.patching.points import Seen, point


class Points:
    """Points of both watched groups on the host of the patching tests, and what was said."""

    def __init__(self, host: Host) -> None:  # noqa: F811
        self.norms = host.load("norms")
        self.step = Target(f"{host.package}.norms:Optimizer.step")
        self.norm = Target(f"{host.package}.norms:norm", parameters=("values",))
        self.seen = Seen(point(self.step, name="start_grad_sync", group="before_reduction"), point(self.norm))
        self.seen.engine.install()
        self.said: list[str] = []
        self.test = SelfTest(self.seen.engine, self.said.append)


@pytest.fixture
def tested(host: Host) -> Points:  # noqa: F811
    return Points(host)


def optimizer(*, groups: int = 1, clip: float = 1.0, scaler: bool = False) -> Any:
    """A guarded optimizer with a chunk of so many bucket groups."""
    chunk = SimpleNamespace(bucket_groups=[object()] * groups, expert_parallel_bucket_groups=[])
    grad_scaler = SimpleNamespace(min_scale=1.0) if scaler else None
    host_optimizer = SimpleNamespace(config=SimpleNamespace(clip_grad=clip), grad_scaler=grad_scaler)
    return cast("Any", SimpleNamespace(chunks=[chunk], optimizer=host_optimizer))


def run(tested: Points, *, calls: bool, **kind: Any) -> list[str]:
    """One step, and the begin of the next three."""
    guarded = [optimizer(**kind)]
    tested.test.step_begins(guarded)
    if calls:
        tested.norms.norm([1])
        tested.norms.Optimizer().step(1)
    tested.test.step_decided()
    for _ in range(3):
        tested.test.step_begins(guarded)
    return tested.said


def test_a_step_that_calls_everything_is_silent(tested: Points) -> None:
    assert run(tested, calls=True) == []


def test_a_point_that_was_never_called_is_named_once_with_its_loss(tested: Points) -> None:
    assert run(tested, calls=False) == [
        f"no call of {tested.step.path} in a whole step; lost: the sight of it",
        f"no call of {tested.norm.path} in a whole step; lost: the sight of it",
    ]


@pytest.mark.parametrize(
    ("kind", "missing"),
    [({"groups": 0}, ["norm"]), ({"clip": 0.0}, ["step"]), ({"scaler": True}, ["step"])],
)
def test_what_a_layout_does_not_call_is_not_missed(tested: Points, kind: dict[str, Any], missing: list[str]) -> None:
    said = run(tested, calls=False, **kind)
    assert [sentence.split(" in a")[0].replace(":", ".").rpartition(".")[2] for sentence in said] == missing


def test_a_replaced_function_is_wrapped_again_and_named_once(tested: Points) -> None:
    for _ in range(2):
        tested.norms.norm = lambda values: 5
        tested.test.step_begins([])
        assert tested.norms.norm([1]) == 105
    assert tested.said == [f"another package replaced {tested.norm.path}; it is wrapped again"]


def test_a_function_that_cannot_be_wrapped_again_is_named_with_the_reason(tested: Points) -> None:
    tested.norms.norm = lambda grads: 5
    tested.test.step_decided()
    (said,) = tested.said
    assert said.startswith(f"another package replaced {tested.norm.path}, which cannot be wrapped again: ")
    assert "takes (grads), expected to begin with (values)" in said


def test_an_override_that_cannot_be_wrapped_again_is_named_with_the_reason(host: Host) -> None:  # noqa: F811
    norms = host.load("norms")
    seen = Seen(point(Target(f"{host.package}.norms:Optimizer.step", parameters=("self", "amount"), family=True)))
    seen.engine.install()

    class Muon(norms.Chained):  # type: ignore[misc, name-defined]
        def step(this, amount: int) -> int:
            return 7

    said: list[str] = []
    test = SelfTest(seen.engine, said.append)
    test.step_decided()
    assert said == []
    Muon.step = 3  # type: ignore[assignment, method-assign]
    test.step_decided()
    (sentence,) = said
    assert f"{Muon.__qualname__}.step, which cannot be wrapped again: " in sentence
