"""What the guard holds of one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.settings import Settings
from tests.unit.guarded_run.watched import Watched
from tests.unit.one_rank import trainer

Watch = Callable[..., Watched]


def test_it_owns_its_chunks_by_identity(watch: Watch) -> None:
    watched, other = watch(), watch()
    assert watched.guarded.owns(watched.trainer.ddp)
    assert not watched.guarded.owns(other.trainer.ddp)


def test_a_rank_whose_place_is_not_known_is_a_replica(handshake: RunHandshake) -> None:
    made = trainer()
    guarded = GuardedOptimizer(made.optimizer, [made.ddp], handshake.voting_ranks(), Settings(on=True), Shield())
    assert guarded.coordinates.label(guarded.sizes) == "tp0pp0dp0"
    assert guarded.sizes.world == 1


@pytest.mark.parametrize(
    ("clip_grad", "norm", "coefficient"),
    [(0.0, 5.0, None), (1.0, None, None), (1.0, 4.0, 0.25), (1.0, 0.5, 1.0), (1.0, math.inf, 0.0)],
)
def test_the_clip_coefficient_is_megatrons(
    watch: Watch, clip_grad: float, norm: float | None, coefficient: float | None
) -> None:
    found = watch(clip_grad=clip_grad).guarded.clip_coefficient(norm)
    assert found == (None if coefficient is None else pytest.approx(coefficient, abs=1e-6))


def test_a_nan_norm_makes_a_nan_coefficient(watch: Watch) -> None:
    found = watch(clip_grad=1.0).guarded.clip_coefficient(math.nan)
    assert found is not None
    assert math.isnan(found)
