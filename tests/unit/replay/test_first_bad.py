"""The first bad micro-batch."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from megatron_nanguard.replay.first_bad import FirstBad
from megatron_nanguard.replay.in_place import replay
from megatron_nanguard.sentinel.gradient_norms import BucketNorms
from tests.unit.megatron_api.chunks import Chunk
from tests.unit.replay.recorded import TWO, Recorded

NAN = float("nan")


def found(recorded: Recorded, *inputs: torch.Tensor) -> int | None:
    call = recorded.forward_backward(inputs)
    first_bad = FirstBad(call.chunks)
    replay(call, after_backward=first_bad.look)
    return first_bad.read()


def test_a_healthy_step_has_none(recorded: Recorded) -> None:
    assert found(recorded, *TWO) is None


def test_a_bad_sample_is_found_in_its_micro_batch(recorded: Recorded) -> None:
    bad = torch.tensor([[NAN, 1.0]])
    assert found(recorded, TWO[0], bad, TWO[1]) == 1


def test_the_parameter_that_turns_bad_first_counts(recorded: Recorded) -> None:
    seen = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor | None:
        # Called in both passes, once per micro-batch: the second one spoils this weight alone.
        seen.append(gradient)
        return gradient * NAN if len(seen) % 3 == 2 else None

    recorded.trainer.net.second.weight.register_hook(spoil)
    bad = torch.tensor([[NAN, 1.0]])
    assert found(recorded, TWO[0], TWO[1], bad) == 1


def test_large_and_finite_is_not_bad(recorded: Recorded) -> None:
    # Its square would overflow.
    assert found(recorded, torch.tensor([[1e30, 0.0]])) is None
    assert found(recorded, torch.tensor([[float("inf"), 0.0]])) == 0


def in_flight(chunk: Chunk, *params: str) -> None:
    """Let the reduction of some parameters be on its way."""
    bucket = SimpleNamespace(params_list=[getattr(chunk, name) for name in params])
    chunk.bucket_groups = [SimpleNamespace(buckets=[bucket], grad_reduce_handle=object())]
    chunk.expert_parallel_bucket_groups = []


def test_gradients_that_are_being_reduced_are_left_to_the_norms_before_it() -> None:
    chunk = Chunk()
    first_bad = FirstBad([chunk])
    first_bad.look(0, 0)
    in_flight(chunk, "a", "b")
    chunk.buffer.grad_data.fill_(NAN)
    first_bad.look(1, 0)
    assert first_bad.read() == 1
    chunk.c.main_grad.fill_(0.0)
    only_those_being_reduced = FirstBad([chunk])
    only_those_being_reduced.look(1, 0)
    assert only_those_being_reduced.read() is None
    norms = BucketNorms((chunk.a, chunk.b), torch.tensor([NAN, 1.0]))
    assert only_those_being_reduced.read([norms]) == 1


def test_a_gradient_that_only_the_bucket_norms_show_turned_bad_in_the_last_micro_batch() -> None:
    chunk = Chunk()
    first_bad = FirstBad([chunk])
    first_bad.look(0, 0)
    in_flight(chunk, "a", "b", "c")
    first_bad.look(1, 0)
    norms = BucketNorms((chunk.a, chunk.b, chunk.c), torch.tensor([1.0, NAN, 1.0]))
    assert first_bad.read([norms]) == 1


def test_a_norm_of_a_whole_bucket_counts_too_and_what_was_bad_before_it_comes_first() -> None:
    chunk = Chunk()
    first_bad = FirstBad([chunk])
    first_bad.look(0, 0)
    norms = BucketNorms((chunk.a, chunk.b), torch.tensor([NAN]))
    assert first_bad.read([norms]) == 0
    chunk.b.main_grad.fill_(NAN)
    first_bad.look(2, 0)
    first_bad.look(3, 0)
    assert first_bad.read([norms]) == 2


def test_steps_of_an_unknown_micro_batch_are_passed_over() -> None:
    chunk = Chunk()
    chunk.buffer.grad_data.fill_(NAN)
    first_bad = FirstBad([chunk])
    first_bad.look(None, 0)
    assert first_bad.read() is None
