"""Megatron with the layer spec of `tests/opaque`: it trains as the local spec does, guarded or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Server
from tests.opaque import kernels
from tests.ranks.conftest import EndStates
from tests.ranks.layouts import LAYOUTS, NO_DROPOUT
from tests.ranks.test_healthy import assert_guarded, differences
from tests.ranks.training_log import Step, steps_of

pytestmark = pytest.mark.ranks

OPAQUE = ("--spec", "tests.opaque.spec", "layer_spec")
FUSED = {"OPAQUE_MLP": "fused", "OPAQUE_WGRAD": "fused"}
ALWAYS = ("D2",)
LIKE_LOCAL: Mapping[str, tuple[str, ...]] = {
    "D2": ("--position-embedding-type", "rope"),
    "A": NO_DROPOUT,
    "B": NO_DROPOUT,
    "H": ("--group-query-attention", "--num-query-groups", "2"),
}
"""Layouts, and what to add: nothing that draws random numbers, and more kinds of attention."""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile once, before several ranks want to."""
    kernels.library()


def by_layout(*names: str) -> list[object]:
    return [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in names]


@pytest.mark.parametrize("env", [{}, FUSED], ids=["parts", "fused"])
@pytest.mark.parametrize("layout", by_layout("D2", "A", "AR", "B", "C", "E", "F", "G", "H"))
def test_three_healthy_steps_end_in_the_same_bits_with_and_without_the_guard(
    end_states: EndStates, layout: str, env: Mapping[str, str]
) -> None:
    stock, guarded = end_states(layout, *OPAQUE, **env)

    assert_guarded(guarded, LAYOUTS[layout].nproc)
    for rank, (plain, watched) in enumerate(zip(stock.ranks, guarded.ranks, strict=True)):
        assert differences(plain["state"], watched["state"]) == [], f"rank {rank}"


@pytest.mark.parametrize("layout", [pytest.param(name, marks=pytest.mark.long) for name in ("D2", "A", "B")])
def test_delayed_scaling_ends_in_the_same_bits_with_and_without_the_guard(end_states: EndStates, layout: str) -> None:
    stock, guarded = end_states(layout, *OPAQUE, OPAQUE_FP8="delayed")

    assert_guarded(guarded, LAYOUTS[layout].nproc)
    for rank, (plain, watched) in enumerate(zip(stock.ranks, guarded.ranks, strict=True)):
        assert differences(plain["state"], watched["state"]) == [], f"rank {rank}"


@pytest.mark.long
def test_delayed_scaling_trains_nearly_like_full_precision(ranks: Server, tmp_path: Path) -> None:
    plain, cast = (train(ranks, tmp_path, "D2", *OPAQUE, env=env) for env in ({}, {"OPAQUE_FP8": "delayed"}))

    assert plain != cast
    assert [step.loss for step in cast] == pytest.approx([step.loss for step in plain], rel=2e-2)


@pytest.mark.parametrize("layout", by_layout(*LIKE_LOCAL))
def test_it_trains_like_the_local_spec(ranks: Server, tmp_path: Path, layout: str) -> None:
    local, parts, fused = (
        train(ranks, tmp_path, layout, *more, env=env) for more, env in (((), {}), (OPAQUE, {}), (OPAQUE, FUSED))
    )

    # Half precision rounds in other places; three steps do not drift apart further than that.
    tolerance = 1e-2 if "--bf16" in LAYOUTS[layout].args else 1e-5
    for opaque in (parts, fused):
        assert [step.loss for step in opaque] == pytest.approx([step.loss for step in local], rel=tolerance)
        assert [step.grad_norm for step in opaque] == pytest.approx(
            [step.grad_norm for step in local], rel=5 * tolerance
        )


def train(ranks: Server, folder: Path, layout: str, *more: str, env: Mapping[str, str]) -> list[Step]:
    chosen = LAYOUTS[layout].plus(*LIKE_LOCAL[layout], *more)
    steps = steps_of(ranks.run(chosen.nproc, pretrain_script(), chosen.args, env=env, cwd=folder))
    assert len(steps) == 3
    return steps
