"""Every patch point against the sources of the releases it claims: target there, signature as told, copies known."""

from __future__ import annotations

import pytest

from megatron_nanguard.patch_points import POINTS
from megatron_nanguard.patching.point import Target
from tests.contract.sources import RELEASES, Release, release

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

TARGETS = [target for point in POINTS for target in point.targets]


def faults(source: Release, target: Target) -> list[str]:
    """What the table says about a target and the sources of one release do not."""
    seen = source.parameters(target.path)
    if not target.covers(source.line):
        return [] if seen is None else [f"{target.path} is there, outside {target.since} to {target.until}"]
    if seen is None:
        return [f"{target.path} is not there"]
    if seen[: len(target.parameters)] != target.parameters:
        return [f"{target.path} takes {seen}, the table says {target.parameters}"]
    return []


def package_of(target: Target) -> str:
    """`megatron.core` or `megatron.training`."""
    return ".".join(target.module.split(".")[:2])


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path)
def test_target_is_in_the_release_as_the_table_says(version: str, target: Target) -> None:
    source = release(version)
    if not source.has_package(package_of(target)):
        pytest.skip(f"{version} ships no {package_of(target)}")
    assert faults(source, target) == []


def test_each_package_is_checked_in_some_release() -> None:
    packages = {package_of(target) for target in TARGETS}
    checked = {package for package in packages for version in RELEASES if release(version).has_package(package)}
    assert checked == packages


@pytest.mark.parametrize("target", [each for each in TARGETS if "." not in each.attribute], ids=lambda each: each.path)
def test_every_copy_of_a_function_is_in_the_table(target: Target) -> None:
    seen = {copy for version in RELEASES for copy in release(version).importers(target.module, target.attribute)}
    assert seen == set(target.copies)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (Target("megatron.core.parallel_state:initialize_world"), "is not there"),
        (Target("megatron.core.nowhere:f"), "is not there"),
        (Target("megatron.core.optimizer.optimizer:ChainedOptimizer.scale_loss"), "is not there"),
        (
            Target("megatron.core.optimizer.optimizer:MegatronOptimizer.clip_grad_norm", parameters=("self", "limit")),
            "takes ('self', 'clip_grad'), the table says ('self', 'limit')",
        ),
        (
            Target("megatron.core.optimizer.optimizer:MegatronOptimizer.clip_grad_norm", until="0.11"),
            "is there, outside 0.8 to 0.11",
        ),
    ],
)
def test_a_table_that_is_wrong_is_found_out(target: Target, fault: str) -> None:
    found = faults(release("0.16.1"), target)
    assert len(found) == 1
    assert found[0].endswith(fault)
