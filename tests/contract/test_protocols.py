"""Every attribute that `megatron_api/protocols.py` lists, in the sources of the releases that it names.

shared: bool                                                 in every release
is_stub_optimizer: bool        \"\"\"Since 0.11: ...\"\"\"           in releases from 0.11 on
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from megatron_nanguard.megatron_api import protocols
from tests.contract.sources import RELEASES, Release, release

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

HOMES = {
    "ModelParameter": "megatron.core",
    "TransformerConfig": "megatron.core",
    "DDPConfig": "megatron.core.distributed",
    "Bucket": "megatron.core.distributed",
    "BucketGroup": "megatron.core.distributed",
    "SelfReducingBucket": "megatron.core.distributed",
    "ParamAndGradBuffer": "megatron.core.distributed",
    "ModelChunk": "megatron.core",
    "OptimizerConfig": "megatron.core.optimizer",
    "GradScaler": "megatron.core.optimizer",
    "DynamicGradScaler": "megatron.core.optimizer",
    "MegatronOptimizer": "megatron.core.optimizer",
    "ChainedOptimizer": "megatron.core.optimizer",
    "MimoOptimizer": "megatron.core.models.mimo",
    "LeafOptimizer": "megatron.core.optimizer",
    "RngTracker": "megatron.core.tensor_parallel.random",
    "RerunStateMachine": "megatron.core.rerun_state_machine",
    "Timers": "megatron.core.timers",
}
"""Where the objects of each class come from. Those of `InnerOptimizer` are torch's."""

FIRST, LAST = (0, 8), (0, 99)


class Attribute(NamedTuple):
    """One attribute of a protocol, and the first and last release line that has it."""

    owner: str
    name: str
    since: tuple[int, int]
    until: tuple[int, int]


def attributes() -> Iterator[Attribute]:
    """Read them off the source: a limit stands in the docstring of the attribute or of the class."""
    tree = ast.parse(Path(protocols.__file__).read_text())
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef) and owner.name != "InnerOptimizer":
            of_class = limits(ast.get_docstring(owner) or "")
            for node, following in zip(owner.body, [*owner.body[1:], None], strict=True):
                text = docstring(node, following)
                since, until = limits(text) if limits(text) != (FIRST, LAST) else of_class
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield Attribute(owner.name, node.target.id, max(since, of_class[0]), min(until, of_class[1]))
                elif isinstance(node, ast.FunctionDef):
                    yield Attribute(owner.name, node.name, *of_class)


def docstring(node: ast.stmt, following: ast.stmt | None) -> str:
    """The string below an annotation."""
    if (
        isinstance(node, ast.AnnAssign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    ):
        return str(following.value.value)
    return ""


def limits(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last release line that a docstring names: ``since 0.9``, ``of 0.8``."""
    since = re.search(r"[Ss]ince (0)\.(\d+)", text)
    only = re.search(r"of (0)\.(\d+)", text)
    if only:
        return line(only), line(only)
    return line(since) if since else FIRST, LAST


def line(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def test_limits_are_read_from_attributes_and_classes() -> None:
    found = {(each.owner, each.name): (each.since, each.until) for each in attributes()}
    assert found["ModelParameter", "shared"] == (FIRST, LAST)
    assert found["ModelParameter", "main_grad_copy_in_grad_buffer"] == ((0, 17), LAST)
    assert found["BucketGroup", "buckets"] == ((0, 9), LAST)
    assert found["MegatronOptimizer", "prepare_grads"] == (FIRST, LAST)
    assert found["SelfReducingBucket", "communication_handle"] == ((0, 8), (0, 8))
    assert {owner for owner, _ in found} == set(HOMES)


def missing(source: Release, wanted: Iterable[Attribute]) -> list[str]:
    """Those that a release should have, but whose name is nowhere in the sources of its home."""
    texts = {
        home: "\n".join(
            source.files[path] for name, path in source.modules.items() if f"{name}.".startswith(f"{home}.")
        )
        for home in set(HOMES.values())
    }
    return [
        f"{each.owner}.{each.name}"
        for each in wanted
        if each.since <= source.line <= each.until and not re.search(rf"\b{each.name}\b", texts[HOMES[each.owner]])
    ]


@pytest.mark.parametrize("version", RELEASES)
def test_every_attribute_is_in_the_sources_of_its_releases(version: str) -> None:
    assert missing(release(version), attributes()) == []


def test_an_attribute_that_a_release_does_not_have_is_found_out() -> None:
    too_early = Attribute("BucketGroup", "grad_reduce_handle", FIRST, LAST)
    assert missing(release("0.8.0"), [too_early]) == ["BucketGroup.grad_reduce_handle"]
