"""Wrapping and unwrapping functions of a host made of real modules."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from megatron_nanguard.patching.engine import when_imported
from megatron_nanguard.patching.point import PointState, Target
from tests.unit.patching.conftest import Host
from tests.unit.patching.points import Seen, point


def norm_target(host: Host, **changes: Any) -> Target:
    """The module function, with the copy that training.py holds."""
    copies = (f"{host.package}.training:norm",)
    return Target(f"{host.package}.norms:norm", **{"parameters": ("values",), "copies": copies, **changes})


def step_target(host: Host) -> Target:
    """The method."""
    return Target(f"{host.package}.norms:Optimizer.step", parameters=("self", "amount"))


def test_a_module_imported_before_is_patched_at_once(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    assert norms.norm([1, 2], scale=3) == 109
    assert seen.calls == [("norm", None, ([1, 2],), {"scale": 3})]


def test_a_module_imported_afterwards_is_patched_on_import(host: Host) -> None:
    target = norm_target(host)
    seen = Seen(point(target))
    seen.engine.install()
    assert seen.engine.state(target) is PointState.WAITING
    assert host.load("norms").norm([1, 2]) == 103
    assert seen.engine.state(target) is PointState.ACTIVE


def test_a_method_gets_its_instance_and_a_bound_original(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(step_target(host)))
    seen.engine.install()
    optimizer = norms.Optimizer()
    assert optimizer.step(5, twice=True) == 120
    assert norms.Optimizer.step(optimizer, 1) == 102
    assert seen.calls == [("norm", optimizer, (5,), {"twice": True}), ("norm", optimizer, (1,), {})]


def test_a_subclass_that_inherits_the_method_is_covered(host: Host) -> None:
    seen = Seen(point(step_target(host)))
    seen.engine.install()
    assert host.load("norms").Chained().step(3) == 106


def test_calls_are_counted_by_target(host: Host) -> None:
    norms = host.load("norms")
    norm, step = norm_target(host), step_target(host)
    seen = Seen(point(norm, step))
    seen.engine.install()
    norms.norm([1])
    norms.norm([1])
    norms.Optimizer().step(1)
    assert seen.engine.fired == {norm.path: 2, step.path: 1}


@pytest.mark.parametrize("holder_first", [True, False])
def test_a_copy_in_another_module_is_exchanged_and_put_back(host: Host, holder_first: bool) -> None:
    original = host.load("norms").norm
    if holder_first:
        host.load("training")
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    training = host.load("training")
    assert training.train([4]) == 104
    assert seen.engine.remove() == []
    assert training.norm is original
    assert training.train([4]) == 4


def test_a_copy_that_is_not_the_function_is_left_alone(host: Host) -> None:
    host.load("norms")
    training = host.load("training")
    training.norm = theirs = len  # type: ignore[attr-defined]
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    assert training.norm is theirs
    seen.engine.remove()
    assert training.norm is theirs


def test_remove_puts_the_very_objects_back(host: Host) -> None:
    norms = host.load("norms")
    before = (norms.norm, vars(norms.Optimizer)["step"])
    seen = Seen(point(norm_target(host), step_target(host)))
    seen.engine.install()
    assert norms.norm is not before[0]
    assert vars(norms.Optimizer)["step"] is not before[1]
    assert seen.engine.remove() == []
    assert norms.norm is before[0]
    assert vars(norms.Optimizer)["step"] is before[1]


def test_install_twice_wraps_once(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    wrapper = norms.norm
    seen.engine.install()
    assert norms.norm is wrapper
    assert norms.norm([1]) == 101


def test_after_remove_a_module_that_arrives_is_left_alone(host: Host) -> None:
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    seen.engine.remove()
    assert host.load("norms").norm([1]) == 1


def test_installed_again_after_remove_it_wraps_again(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    seen.engine.remove()
    seen.engine.install()
    assert norms.norm([1]) == 101
    assert len(seen.calls) == 1


def test_a_held_wrapper_passes_through_after_remove(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    held = norms.norm
    seen.engine.remove()
    assert held([1, 2]) == 3
    assert seen.calls == []


# ---------------------------------------------------------------------- others on the same function


def wrap_openly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Somebody else's wrapper that keeps ``__wrapped__``."""

    @functools.wraps(function)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) + 1000

    return theirs


def wrap_secretly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Somebody else's wrapper that leaves no trace of what is inside."""
    return lambda values: function(values) + 1000


@pytest.mark.parametrize(("wrap", "state"), [(wrap_openly, PointState.ACTIVE), (wrap_secretly, PointState.FOREIGN)])
def test_a_wrapper_on_top_of_ours_stays_and_ours_only_calls_the_original(
    host: Host, wrap: Callable[[Callable[..., Any]], Callable[..., Any]], state: PointState
) -> None:
    norms, target = host.load("norms"), norm_target(host)
    seen = Seen(point(target))
    seen.engine.install()
    norms.norm = theirs = wrap(norms.norm)  # type: ignore[attr-defined]
    assert seen.engine.state(target) is state
    assert norms.norm([1]) == 1101
    assert seen.engine.remove() == [target.path]
    assert norms.norm is theirs
    assert norms.norm([1]) == 1001


def test_a_target_that_was_replaced_after_us_is_foreign(host: Host) -> None:
    norms, target = host.load("norms"), norm_target(host)
    seen = Seen(point(target))
    seen.engine.install()
    norms.norm = theirs = lambda values: -1  # type: ignore[attr-defined]
    assert seen.engine.state(target) is PointState.FOREIGN
    assert seen.engine.remove() == [target.path]
    assert norms.norm is theirs


def test_a_wrapper_that_was_there_before_is_wrapped_and_comes_back(host: Host) -> None:
    norms = host.load("norms")
    norms.norm = theirs = wrap_openly(norms.norm)  # type: ignore[attr-defined]
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    assert norms.norm([1]) == 1101
    seen.engine.remove()
    assert norms.norm is theirs


def test_a_wrapper_that_hides_the_signature_is_accepted(host: Host) -> None:
    norms = host.load("norms")
    inner = norms.norm
    norms.norm = lambda *args, **kwargs: inner(*args, **kwargs)  # type: ignore[attr-defined]
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    assert norms.norm([1]) == 101


# ---------------------------------------------------------------------- declined and absent


def test_a_missing_target_withdraws_its_whole_group_with_the_reason(host: Host) -> None:
    norms = host.load("norms")
    before = norms.norm
    gone = Target(f"{host.package}.norms:Optimizer.prepare", parameters=("self",))
    norm, step = norm_target(host), step_target(host)
    seen = Seen(point(norm), point(gone, name="prepare"), point(step, name="step", group="step"))
    seen.engine.install()
    assert seen.engine.declined == {"norm": f"{gone.path} is not in this Megatron; without it: the sight of it"}
    assert norms.norm is before
    assert [seen.engine.state(target) for target in (norm, gone, step)] == [
        PointState.DECLINED,
        PointState.DECLINED,
        PointState.ACTIVE,
    ]


def test_a_group_declined_by_a_later_module_is_withdrawn_from_the_earlier_one(host: Host) -> None:
    norms = host.load("norms")
    before = norms.norm
    gone = Target(f"{host.package}.training:validate", parameters=("values",))
    seen = Seen(point(norm_target(host), gone))
    seen.engine.install()
    assert norms.norm([1]) == 101
    training = host.load("training")
    assert norms.norm is before
    assert training.norm is before


def test_a_group_declined_by_an_earlier_module_is_not_applied_in_a_later_one(host: Host) -> None:
    gone = Target(f"{host.package}.norms:Optimizer.prepare", parameters=("self",))
    train = Target(f"{host.package}.training:train", parameters=("values",))
    seen = Seen(point(gone, train))
    seen.engine.install()
    assert host.load("training").train([1]) == 1
    assert list(seen.engine.declined) == ["norm"]


def test_a_missing_class_declines_too(host: Host) -> None:
    host.load("norms")
    gone = Target(f"{host.package}.norms:Mimo.step", parameters=("self",))
    seen = Seen(point(gone))
    seen.engine.install()
    assert seen.engine.declined == {"norm": f"{gone.path} is not in this Megatron; without it: the sight of it"}


@pytest.mark.parametrize(("since", "until"), [("0.13", "0.19"), ("0.8", "0.11")])
def test_a_target_outside_of_its_releases_is_absent_and_its_group_applied(host: Host, since: str, until: str) -> None:
    norms = host.load("norms")
    other = Target(f"{host.package}.norms:other", since=since, until=until)
    seen = Seen(point(norm_target(host), other))
    seen.engine.install()
    assert seen.engine.state(other) is PointState.ABSENT
    assert seen.engine.declined == {}
    assert norms.norm([1]) == 101


def test_an_unknown_release_is_expected_to_have_everything(host: Host) -> None:
    host.load("norms")
    seen = Seen(point(Target(f"{host.package}.norms:other", since="0.13")), release=None)
    seen.engine.install()
    assert list(seen.engine.declined) == ["norm"]


def test_another_signature_declines_with_both_signatures(host: Host) -> None:
    norms = host.load("norms")
    before = norms.norm
    target = norm_target(host, parameters=("grads", "scale"))
    seen = Seen(point(target))
    seen.engine.install()
    assert norms.norm is before
    assert seen.engine.declined == {
        "norm": f"{target.path} takes (values, scale), expected to begin with (grads, scale); "
        "without it: the sight of it"
    }


def test_what_is_no_function_declines(host: Host) -> None:
    host.load("norms")
    target = Target(f"{host.package}.norms:class_norm")
    seen = Seen(point(target))
    seen.engine.install()
    assert seen.engine.declined == {"norm": f"{target.path} is a int, a function is expected; lost: the sight of it"}


def test_after_remove_nothing_is_declined(host: Host) -> None:
    host.load("norms")
    seen = Seen(point(Target(f"{host.package}.norms:other")))
    seen.engine.install()
    seen.engine.remove()
    assert seen.engine.declined == {}


# ---------------------------------------------------------------------- objects that hold what we wrapped


def test_a_config_that_holds_a_bound_method_can_be_deep_copied(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(step_target(host)))
    seen.engine.install()
    optimizer = norms.Optimizer()
    config = {"step": optimizer.step, "norm": norms.norm}
    twin = copy.deepcopy(config)
    assert twin["norm"] is config["norm"]
    assert twin["step"].__self__ is not optimizer
    assert twin["step"](2) == 104


def test_the_wrapper_looks_like_the_function(host: Host) -> None:
    norms = host.load("norms")
    original = norms.norm
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    assert (norms.norm.__name__, norms.norm.__module__) == ("norm", f"{host.package}.norms")
    assert norms.norm.__wrapped__ is original


def test_an_exception_of_the_host_passes_through(host: Host) -> None:
    norms = host.load("norms")
    seen = Seen(point(norm_target(host)))
    seen.engine.install()
    with pytest.raises(TypeError, match="unsupported operand"):
        norms.norm(["a"])


def test_an_imported_module_is_handed_over_at_once(host: Host) -> None:
    norms = host.load("norms")
    arrived: list[ModuleType] = []
    when_imported(norms.__name__, arrived.append)
    assert arrived == [norms]


def test_a_module_to_come_is_handed_over_when_it_is_complete(host: Host) -> None:
    arrived: list[tuple[str, bool]] = []
    when_imported(f"{host.package}.norms", lambda module: arrived.append((module.__name__, hasattr(module, "Chained"))))
    assert arrived == []
    host.load("training")
    assert arrived == [(f"{host.package}.norms", True)]


def test_a_function_that_shadows_its_module_is_not_taken_for_it(host: Host) -> None:
    host.write("__init__", "from {package}.step import step")
    host.write("step", "def step():\n    return 1\n")
    arrived: list[object] = []
    when_imported(f"{host.package}.step", arrived.append)
    host.load("step")
    when_imported(f"{host.package}.step", arrived.append)
    assert [type(one) for one in arrived] == [ModuleType, ModuleType]


# ---------------------------------------------------------------------- healing


@pytest.mark.parametrize("wrap", [wrap_secretly, lambda function: lambda values: 1000 + sum(values)])
def test_what_somebody_replaced_is_wrapped_again_and_called_once(
    host: Host, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    norms, target = host.load("norms"), norm_target(host)
    seen = Seen(point(target))
    seen.engine.install()
    norms.norm = theirs = wrap(norms.norm)  # type: ignore[attr-defined]
    assert [lost.target.path for lost in seen.engine.heal()] == [target.path]
    assert seen.engine.state(target) is PointState.ACTIVE
    assert norms.norm([1]) == 1101
    assert len(seen.calls) == 1
    assert seen.engine.heal() == []
    assert seen.engine.remove() == []
    assert norms.norm is theirs
    assert norms.norm([1]) == 1001


def test_what_cannot_be_healed_withdraws_its_group_with_the_reason(host: Host) -> None:
    norms, target = host.load("norms"), norm_target(host)
    seen = Seen(point(target))
    seen.engine.install()
    norms.norm = lambda grads: 0  # type: ignore[attr-defined]
    assert [lost.target.path for lost in seen.engine.heal()] == [target.path]
    assert seen.engine.state(target) is PointState.DECLINED
    assert seen.engine.declined["norm"].startswith(f"{target.path} takes (grads), expected to begin with (values)")


# ---------------------------------------------------------------------- families


def test_an_override_in_a_subclass_that_comes_later_is_wrapped_and_comes_back(host: Host) -> None:
    norms = host.load("norms")
    target = Target(f"{host.package}.norms:Optimizer.step", parameters=("self", "amount"), family=True)
    seen = Seen(point(target))
    seen.engine.install()

    class Muon(norms.Chained):  # type: ignore[misc, name-defined]
        def step(this, amount: int) -> int:
            return 7

    class Inherits(Muon):
        pass

    class NoFunction(norms.Chained):  # type: ignore[misc, name-defined]
        step = 3

    override = vars(Muon)["step"]
    assert (seen.engine.heal(), seen.engine.heal()) == ([], [])
    assert (Muon().step(1), Inherits().step(1), norms.Chained().step(1)) == (107, 107, 102)
    assert NoFunction.step == 3
    assert seen.engine.declined == {}
    assert seen.engine.fired_points == {"norm": 3}
    with seen.engine.stand_aside():
        assert vars(Muon)["step"] is override
    assert Muon().step(1) == 107
    Muon.step = lambda self, amount: 8  # type: ignore[method-assign]
    assert [lost.target.path for lost in seen.engine.heal()] == [f"{Muon.__module__}:{Muon.__qualname__}.step"]
    assert Muon().step(1) == 108
    assert seen.engine.remove() == []
    assert Muon().step(1) == 8
