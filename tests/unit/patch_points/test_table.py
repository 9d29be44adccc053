"""The table of patch points as a whole."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.patch_points import ESSENTIAL, POINTS
from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.point import PointState
from tests.unit.patch_points.calls import resolve


def test_the_points_and_their_groups_are_these() -> None:
    assert [(point.name, point.group) for point in POINTS] == [
        ("options", "options"),
        ("initialize_model_parallel", "handshake"),
        ("wrap_chunk", "names"),
        ("get_param_groups", "names"),
        ("get_megatron_optimizer", "names"),
        ("forward_backward", "step"),
        ("start_grad_sync", "before_reduction"),
        ("prepare_grads", "decision"),
        ("optimizer_step", "decision"),
        ("clip_grad_norm", "norm"),
        ("get_grad_norm", "norm"),
        ("validate_result", "host_checks"),
    ]
    assert set(ESSENTIAL) <= {point.group for point in POINTS}


def test_no_function_is_wrapped_twice() -> None:
    paths = [target.path for point in POINTS for target in point.targets]
    assert sorted(paths) == sorted(set(paths))


def test_every_point_says_what_it_is_for_and_what_is_lost() -> None:
    assert [point.name for point in POINTS if not (point.why and point.lost)] == []


def test_the_whole_table_applies_to_this_megatron_and_leaves_no_trace(megatron: Any) -> None:
    import megatron.core.models.mimo.optimizer
    import megatron.core.optimizer.emerging_optimizers
    import megatron.core.pipeline_parallel.schedules
    import megatron.core.rerun_state_machine
    import megatron.training.arguments
    import megatron.training.training  # noqa: F401

    engine = Engine(POINTS, lambda name: None, lambda: (0, 19))
    targets = [target for point in POINTS for target in point.targets]
    places = [place for target in targets for place in (target.path, *target.copies)]
    before = {place: resolve(place) for place in places if "optimizer.muon" not in place}
    engine.install()
    states = {target.path.rpartition(".")[2] if target.path.endswith("Bucket.start_grad_sync") else target.path:
              engine.state(target) for target in targets}  # fmt: skip
    assert {path for path, state in states.items() if state is not PointState.ACTIVE} == {"start_grad_sync"}
    assert engine.declined == {}
    assert engine.remove() == []
    assert [place for place, was in before.items() if resolve(place) is not was] == []
