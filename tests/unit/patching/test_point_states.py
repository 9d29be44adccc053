"""How every target stands, in words."""

from __future__ import annotations

import pytest

from megatron_nanguard.patching.point import PatchPoint, Target
from megatron_nanguard.patching.point_states import point_states
from megatron_nanguard.records.machine.doctor import PatchPointState
from tests.unit.patching.conftest import Host
from tests.unit.patching.points import RELEASE, Seen, point


def words(*points: PatchPoint) -> dict[str, tuple[bool, str]]:
    """Whether each target works, and its words, by the name of the function."""
    seen = Seen(*points)
    seen.engine.install()
    found = point_states(seen.engine, (), lambda: RELEASE)
    return {one.target.rpartition(":")[2]: (one.works, one.words) for one in found}


def test_targets_are_imported_and_listed_in_the_order_of_the_table(host: Host) -> None:
    norm = Target(f"{host.package}.norms:norm", parameters=("values",))
    train = Target(f"{host.package}.training:train", parameters=("values",))
    seen = Seen(point(train, name="train", group="step"), point(norm))
    seen.engine.install()
    assert point_states(seen.engine, ("step",), lambda: RELEASE) == [
        PatchPointState("train", train.path, essential=True, works=True, words="active"),
        PatchPointState("norm", norm.path, essential=False, works=True, words="active"),
    ]


def test_what_this_release_no_longer_calls_is_active_all_the_same(host: Host) -> None:
    path = f"{host.package}.norms:norm"
    assert words(point(Target(path, called_until="0.11"))) == {"norm": (True, "active, not called by this release")}
    assert words(point(Target(path, called_until="0.12"))) == {"norm": (True, "active")}


def test_what_this_release_is_not_meant_to_have_is_not_needed(host: Host) -> None:
    later = Target(f"{host.package}.norms:later", since="0.13")
    elsewhere = Target(f"{host.package}.mimo:Mimo.step", since="0.17")
    not_needed = "not in this release ({} to 0.19), not needed"
    assert words(point(later, elsewhere)) == {
        "later": (True, not_needed.format("0.13")),
        "Mimo.step": (True, not_needed.format("0.17")),
    }


def test_a_missing_target_gives_reason_and_loss_for_its_whole_group(host: Host) -> None:
    gone = Target(f"{host.package}.norms:gone")
    reason = f"not applied: {gone.path} is not in this Megatron; without it: the sight of it"
    assert words(point(gone, Target(f"{host.package}.norms:norm"))) == {
        "gone": (False, reason),
        "norm": (False, reason),
    }


def test_a_replaced_target_is_reported(host: Host) -> None:
    seen = Seen(point(Target(f"{host.package}.norms:norm")))
    seen.engine.install()
    host.load("norms").norm = len  # type: ignore[attr-defined]
    (found,) = point_states(seen.engine, (), lambda: RELEASE)
    assert (found.works, found.words) == (False, "replaced by another package after us; lost: the sight of it")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("[][0]", "IndexError: list index out of range"),
        ("raise KeyError('CUDA_HOME')", "KeyError: 'CUDA_HOME'"),
        ("raise OSError('libcuda.so:\\n not found')", "OSError: libcuda.so: not found"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_reported_with_the_error(host: Host, text: str, problem: str) -> None:
    host.write("broken", text)
    assert words(point(Target(f"{host.package}.broken:f"))) == {
        "f": (False, f"its module cannot be imported ({problem}); lost: the sight of it")
    }
