"""Another package patches the same functions before us, after us, and again: nothing is lost on either side."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from megatron_nanguard.patching.other_patchers import OtherPatchers
from megatron_nanguard.patching.point import PointState, Target
from tests.unit.patching import mindspeed
from tests.unit.patching.conftest import Host
from tests.unit.patching.points import Seen, point

THEIRS, WRAPPED = 10_000, 1000


def replaced(self: Any, amount: int, *, twice: bool = False) -> int:
    """A method of theirs in place of the host's."""
    return THEIRS


def adding_wrapper(function: Callable[..., int]) -> Callable[..., int]:
    """A wrapper of theirs; the name says so to their manager."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> int:
        return function(*args, **kwargs) + WRAPPED

    return call


class Both:
    """Our engine and their manager on one host: its method is replaced, its function wrapped by them."""

    def __init__(self, host: Host, restores_classes: bool) -> None:
        self.host = host
        host.write("patch_utils", mindspeed.text(restores_classes=restores_classes))
        self.norms = host.load("norms")
        self.training = host.load("training")
        self.step = Target(f"{host.package}.norms:Optimizer.step", parameters=("self", "amount"))
        self.norm = Target(f"{host.package}.norms:norm", copies=(f"{host.package}.training:norm",))
        self.seen = Seen(point(self.step, name="step", group="step"), point(self.norm))
        path = f"{host.package}.patch_utils:MindSpeedPatchesManager"
        self.others = OtherPatchers(
            [f"{path}.apply_patches", f"{path}.remove_patches", f"{path}.gone"], self.seen.engine.stand_aside
        )

    def we(self) -> None:
        self.seen.engine.install()
        self.others.install()

    @property
    def manager(self) -> Any:
        return self.host.load("patch_utils").MindSpeedPatchesManager

    def they(self, *, replace: bool = True) -> None:
        """What their adaptor does at import."""
        if replace:
            self.manager.register_patch(f"{self.host.package}.norms.Optimizer.step", replaced)
        self.manager.register_patch(f"{self.host.package}.norms.norm", adding_wrapper)
        self.manager.apply_patches()

    def they_again(self, *, replace: bool = True) -> None:
        """What their `repatch` does, with features on or off."""
        self.manager.remove_patches()
        self.they(replace=replace)

    def results(self) -> tuple[int, int]:
        return self.norms.Optimizer().step(1), self.training.train([1])


@pytest.fixture(params=[False, True], ids=["core_r0.12.1", "core_r0.15.3"])
def both(host: Host, request: pytest.FixtureRequest) -> Iterator[Both]:
    found = Both(host, request.param)
    yield found
    found.others.remove()
    found.seen.engine.remove()


ORDERS: dict[str, Callable[[Both], None]] = {
    "adaptor, then we": lambda both: (both.they(), both.we()),
    "we, then adaptor": lambda both: (both.we(), both.they()),
    "we twice, then adaptor": lambda both: (both.we(), both.we(), both.they()),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("repatches", [0, 1, 3])
def test_in_every_order_both_are_called_once(both: Both, order: str, repatches: int) -> None:
    ORDERS[order](both)
    for _ in range(repatches):
        both.they_again()
    assert both.results() == (THEIRS + 100, 1 + WRAPPED + 100)
    assert [name for name, *_ in both.seen.calls] == ["step", "norm"]
    assert {both.seen.engine.state(target) for target in (both.step, both.norm)} == {PointState.ACTIVE}


@pytest.mark.parametrize("order", ORDERS)
def test_what_they_take_back_is_the_hosts_again_under_ours(both: Both, order: str) -> None:
    ORDERS[order](both)
    both.they_again(replace=False)
    # The older line never restores a method by itself, with us or without; it builds it anew from the original.
    assert both.norms.Optimizer().step(1) == 102
    assert both.training.train([1]) == 1 + WRAPPED + 100


@pytest.mark.parametrize("order", ORDERS)
def test_after_removal_only_theirs_is_there(both: Both, order: str) -> None:
    ORDERS[order](both)
    both.others.remove()
    assert both.seen.engine.remove() == []
    assert both.results() == (THEIRS, 1 + WRAPPED)
    assert vars(both.norms.Optimizer)["step"] is replaced
    both.they_again()
    assert both.results() == (THEIRS, 1 + WRAPPED)
    assert both.seen.calls == []


def test_an_error_of_theirs_goes_through_and_ours_is_back(both: Both) -> None:
    both.we()
    both.manager.register_patch(f"{both.host.package}.norms.Missing.step", replaced)
    with pytest.raises(AttributeError):
        both.manager.apply_patches()
    assert both.results() == (102, 101)


def test_a_module_that_they_import_while_patching_is_wrapped_on_top(both: Both) -> None:
    both.host.write("late", "def train(values):\n    return 7\n")
    late = Target(f"{both.host.package}.late:train")
    seen = Seen(point(late))
    others = OtherPatchers([f"{both.host.package}.patch_utils:MindSpeedPatchesManager.apply_patches"],
                           seen.engine.stand_aside)  # fmt: skip
    seen.engine.install()
    others.install()
    both.manager.register_patch(f"{both.host.package}.late.train", adding_wrapper)
    both.manager.apply_patches()
    module: ModuleType = both.host.load("late")
    assert module.train([]) == 7 + WRAPPED + 100
    others.remove()
    assert seen.engine.remove() == []
