"""A replay is the same bit for bit, and the state before it can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from megatron_nanguard.replay.in_place import DecisionPoint, replay
from tests.unit.replay.recorded import FIRST, SECOND, TWO, Recorded


def noisy(output: torch.Tensor) -> Any:
    """A loss that depends on a random number."""
    return output.sum() * torch.rand(1), {}


def test_the_first_pass_is_what_was_computed_by_hand(recorded: Recorded) -> None:
    recorded.forward_backward()
    assert recorded.gradients() == [FIRST, SECOND]


def test_a_replay_is_exact_and_everything_comes_back(recorded: Recorded) -> None:
    call = recorded.forward_backward(loss=noisy)
    first, drawn = recorded.gradients(), torch.get_rng_state()
    point = DecisionPoint.take(call)
    for _ in range(2):
        exactness = point.compare(replay(call))
        assert (exactness.exact, exactness.differs, exactness.tolerance) == (True, (), None)
    assert point.put_back() == ()
    assert recorded.gradients() == first
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_replay_has_its_backward_where_the_optimizer_forbids_gradients(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    with torch.no_grad():
        replay(call)
    assert recorded.gradients() == [FIRST, SECOND]


def test_without_the_recorded_grad_mode_the_gradients_would_be_missing(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    point = DecisionPoint.take(call)
    call.grad_mode = False
    exactness = point.compare(replay(call))
    assert (exactness.differs, exactness.tolerance) == (("gradients",), 1.0)
    assert point.put_back() == ()
    assert recorded.gradients() == [FIRST, SECOND]


def test_without_the_random_state_gradients_and_generators_differ(recorded: Recorded) -> None:
    call = recorded.forward_backward(loss=noisy)
    point = DecisionPoint.take(call)
    del call.snapshot.parts["torch random"]
    assert point.compare(replay(call)).differs == ("gradients", "random")
    assert point.put_back() == ()


def test_the_replay_of_a_bad_step_is_exact_too(recorded: Recorded) -> None:
    call = recorded.forward_backward((TWO[0], torch.tensor([[float("nan"), 1.0]])))
    point = DecisionPoint.take(call)
    assert point.compare(replay(call)).exact


def test_another_steps_data_gives_other_gradients_and_leaves_no_trace(recorded: Recorded) -> None:
    recorded.forward_backward((TWO[0], TWO[0]))
    recorded.recorder.close()
    call = recorded.forward_backward()
    point = DecisionPoint.take(call)
    replay(call, batch=recorded.recorder.previous)
    assert recorded.gradients() == [[[5.0, 5.0], [6.0, 6.0]], [[3.0, 7.0]]]
    assert point.put_back() == ()
    assert recorded.gradients() == [FIRST, SECOND]


def test_every_step_of_every_micro_batch_is_followed(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    seen: list[Any] = []

    @contextmanager
    def at(microbatch: int | None, chunk: int, in_backward: bool) -> Iterator[None]:
        seen.append(("enter", microbatch, chunk, in_backward))
        yield
        seen.append("leave")

    replay(call, at=at, after_backward=lambda *where: seen.append(("looked", *where)))
    assert seen == [
        *(("enter", 0, 0, False), "leave", ("enter", 0, 0, True), ("looked", 0, 0), "leave"),
        *(("enter", 1, 0, False), "leave", ("enter", 1, 0, True), ("looked", 1, 0), "leave"),
    ]


def test_what_goes_on_during_the_call_sees_the_call_alone(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    seen = []

    @contextmanager
    def during() -> Iterator[None]:
        seen.append(recorded.gradients())
        yield
        seen.append(recorded.gradients())

    replay(call, during())
    assert seen == [[[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0]]], [FIRST, SECOND]]


def test_autograd_stays_in_the_calling_thread(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    seen = []
    replay(call, at=_noting(seen))
    assert set(seen) == {False}
    assert torch.autograd.is_multithreading_enabled()


def test_an_error_passes_through_and_megatron_gets_its_functions_back(recorded: Recorded) -> None:
    from megatron.core.pipeline_parallel import schedules

    call = recorded.forward_backward()
    before = schedules.forward_step, schedules.backward_step

    def fail(*_: Any) -> None:
        raise MemoryError("planted")

    with pytest.raises(MemoryError, match="planted"):
        replay(call, after_backward=fail)
    assert (schedules.forward_step, schedules.backward_step) == before
    assert next(call.recording.data_iterator, None) is None, "recording again, and the host's iterator is at its end"


def _noting(seen: list[bool]) -> Any:
    @contextmanager
    def at(*_: Any) -> Iterator[None]:
        seen.append(torch.autograd.is_multithreading_enabled())
        yield

    return at
