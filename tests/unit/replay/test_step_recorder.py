"""What a recorded call holds, when it can be made again, and that it is dropped with its step."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from megatron_nanguard.device import CpuDevice
from megatron_nanguard.replay.step_recorder import StepRecorder
from tests.unit.one_rank import ONES
from tests.unit.replay.recorded import TWO, Recorded


def test_a_single_pass_over_recorded_data_can_be_replayed(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    assert call.why_not() == ""
    assert (call.num_microbatches, call.grad_mode) == (2, True)
    assert [item.tolist() for item in call.recording.batch()[0]] == [item.tolist() for item in TWO]


def test_a_decision_drops_the_call_and_keeps_its_data(recorded: Recorded) -> None:
    recorded.forward_backward()
    recorded.recorder.close()
    assert recorded.recorder.call is None
    assert recorded.recorder.previous is not None
    assert [item.tolist() for item in recorded.recorder.previous[0]] == [item.tolist() for item in TWO]
    recorded.recorder.close()
    assert recorded.recorder.previous is not None, "a decision without a pass forgets nothing"


def test_a_pass_that_is_repeated_over_emptied_gradients_can_be_replayed(recorded: Recorded) -> None:
    recorded.forward_backward()
    call = recorded.forward_backward((ONES,))
    assert call.why_not() == ""
    assert call.num_microbatches == 1


def test_a_second_pass_on_top_of_the_first_cannot(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.forward_backward()
    monkeypatch.setattr(recorded.trainer.ddp, "zero_grad_buffer", lambda: None)
    why_not = recorded.forward_backward().why_not()
    assert why_not == "the host calls the schedule several times per step without emptying the gradients in between"


def test_data_that_is_no_iterator_cannot_be_replayed(recorded: Recorded) -> None:
    data = _Source()
    call = recorded.forward_backward(data_iterator=data, forward_step_func=_from_source)
    assert call.why_not() == "the data iterator is a _Source, which is no iterator"


def test_a_model_without_gradient_buffers_cannot_be_replayed() -> None:
    recorder = StepRecorder([torch.nn.Linear(1, 1)], CpuDevice())
    recorder.open(print, {"data_iterator": None, "num_microbatches": 1})
    assert recorder.call is not None
    why_not = recorder.call.why_not()
    assert "in no buffer" in why_not


def test_nothing_of_the_step_but_copies_is_kept_alive(recorded: Recorded) -> None:
    passed: list[weakref.ref[torch.Tensor]] = []

    def note(module: Any, inputs: Any, output: torch.Tensor) -> None:
        passed.extend([weakref.ref(inputs[0]), weakref.ref(output)])

    recorded.trainer.net.first.register_forward_hook(note)
    recorded.forward_backward(data_iterator=(item.clone() for item in TWO))
    gc.collect()
    assert [reference() for reference in passed] == [None] * 4


class _Source:
    """Hands out data, but not as an iterator does."""

    def read(self) -> torch.Tensor:
        return ONES


def _from_source(data: Any, model: Any) -> tuple[torch.Tensor, Any]:
    return model(data.read()), lambda output: (output.sum(), {})


def test_a_batch_of_the_same_form_fits(recorded: Recorded) -> None:
    recorded.forward_backward()
    assert not recorded.recorder.previous_fits, "no step before"
    recorded.recorder.close()
    recorded.forward_backward()
    assert recorded.recorder.previous_fits
    recorded.forward_backward((ONES,))
    assert not recorded.recorder.previous_fits, "another number of micro-batches"
    recorded.forward_backward((*TWO[:1], TWO[1].repeat(2, 1)))
    assert not recorded.recorder.previous_fits, "another shape"


def test_a_bad_step_leaves_no_batch_behind(recorded: Recorded) -> None:
    recorded.forward_backward()
    recorded.recorder.close()
    recorded.forward_backward((ONES,))
    recorded.recorder.discard()
    recorded.recorder.close()
    assert recorded.recorder.previous is not None
    assert [item.tolist() for item in recorded.recorder.previous[0]] == [item.tolist() for item in TWO]
