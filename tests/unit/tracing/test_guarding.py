"""Tracing must not change bits, raise into the step, trace its own operators or keep tensors alive."""

from __future__ import annotations

import gc
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from megatron_nanguard.tracing.recording.recorder import EventRecorder
from tests.unit.conftest import Log
from tests.unit.tracing.faults import NanBackward, log_of_negative
from tests.unit.tracing.steps import Model, Schedule, batches


def gradients(model: torch.nn.Module) -> list[Tensor]:
    return [param.main_grad.clone() for param in model.parameters()]


def plain_and_traced(model: torch.nn.Module, **options: Any) -> tuple[list[Tensor], list[Tensor], Schedule]:
    """Gradients of the same micro-batches without and with the tracer."""
    Schedule(model).untraced(batches())
    plain = gradients(model)
    schedule = Schedule(model, **options)
    schedule.run(batches())
    return plain, gradients(model), schedule


def test_traced_bits_are_the_plain_ones() -> None:
    plain, traced, schedule = plain_and_traced(Model())
    assert schedule.tracer.summarize("").broken == ""
    assert all(map(torch.equal, plain, traced))


def test_broken_tracer_gives_no_origins_and_does_not_touch_the_step(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    def sabotaged(*args: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(EventRecorder, "after", sabotaged)
    plain, traced, schedule = plain_and_traced(Model(log_of_negative))
    trace = schedule.tracer.summarize("tp0pp0dp0")
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(plain, traced, strict=True))
    assert trace.broken == "the tracer: ValueError: planted"
    assert (trace.rank, trace.coords, trace.origins, trace.sinks) == (3, "tp0pp0dp0", (), ())
    assert len(log.messages) == 1


@pytest.mark.parametrize("name", ["_forward_place", "about_to_run", "place"])
def test_fault_in_any_hook_stays_inside(monkeypatch: pytest.MonkeyPatch, log: Log, name: str) -> None:
    def sabotaged(*args: Any, **kwargs: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(f"megatron_nanguard.tracing.places.current_place.CurrentPlace.{name}", sabotaged)
    plain, traced, schedule = plain_and_traced(Model())
    assert all(map(torch.equal, plain, traced))
    assert schedule.tracer.summarize("").broken == "the tracer: ValueError: planted"


def test_error_of_the_model_passes_through() -> None:
    def raises(x: Tensor) -> Tensor:
        raise KeyError("the model's own")

    with pytest.raises(KeyError, match="the model's own"):
        Schedule(Model(raises), microbatch=0).run(batches())
    # Hooks and modes are gone again.
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


def test_operators_run_in_our_hooks_are_not_traced() -> None:
    schedule = Schedule(Model())
    schedule.run(batches())
    operators = {event.operator.partition(".")[0] for event in schedule.tracer._recorder.log.events}
    assert "aminmax" not in operators
    assert operators.isdisjoint({"detach", "_local_scalar_dense", "zeros"})


def test_no_operator_output_is_kept_alive() -> None:
    outputs: list[StorageWeakRef] = []

    def watched(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        outputs.append(StorageWeakRef(y.untyped_storage()))
        return y

    schedule = Schedule(Model(watched))
    with schedule.tracer:
        schedule.untraced(batches())
    gc.collect()
    assert len(outputs) == 3
    assert all(output.expired() for output in outputs)


def test_events_have_the_same_numbers_in_every_pass() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        schedule = Schedule(Model(log_of_negative))
        schedule.run(batches())
        runs.append(
            [(event.operator, event.place.module, event.kind) for event in schedule.tracer._recorder.log.events]
        )
    assert runs[0] == runs[1]


def test_host_reads_nothing_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(Model(log_of_negative))
    reads: list[str] = []
    for name in ("item", "tolist", "__bool__", "__int__", "__float__"):
        original = getattr(Tensor, name)

        def counted(self: Tensor, *args: Any, _name: str = name, _original: Any = original) -> Any:
            reads.append(_name)
            return _original(self, *args)

        monkeypatch.setattr(Tensor, name, counted)
    with schedule.tracer:
        schedule.untraced(batches())
    assert reads == []
    schedule.tracer.finish()
    assert reads == ["tolist"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_helper_stays_compiled_and_opaque() -> None:
    @torch.compile
    def helper(x: Tensor) -> Tensor:
        return torch.tanh(x) * torch.exp(x * 0.5) + torch.sin(x)

    plain, traced, schedule = plain_and_traced(Model(helper))
    assert all(map(torch.equal, plain, traced))
    operators = {event.operator.partition(".")[0] for event in schedule.tracer._recorder.log.events}
    assert "sin" not in operators


def test_backward_after_the_tracer_is_not_recorded() -> None:
    schedule = Schedule(Model(NanBackward.apply), microbatch=0)
    with schedule.tracer, schedule.tracer.at(0, 0, False):
        loss = schedule.model(batches()[0]).sum()
    num_events = len(schedule.tracer._recorder.log.events)
    loss.backward()
    assert len(schedule.tracer._recorder.log.events) == num_events


def test_backward_stays_in_the_calling_thread_while_traced() -> None:
    schedule = Schedule(Model())
    with schedule.tracer:
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()
