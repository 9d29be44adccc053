"""The dispatch mode that traces one micro-batch of a replay.

tracer = Tracer(chunks, names, params, rank=5, microbatch=2)
with tracer:
    for each step of the schedule:
        with tracer.at(microbatch, chunk, in_backward):
            ...
            tracer.after_backward(microbatch, chunk)
tracer.finish()
trace = tracer.summarize("tp1pp1dp0")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import Node
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from megatron_nanguard.megatron_api.buffers import local_gradient
from megatron_nanguard.megatron_api.model_chunks import attention_heads
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.records.trace import MARKER_FILL, RankTrace
from megatron_nanguard.tracing.calls.call_stack import CallListener, CallStack
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors, module_of
from megatron_nanguard.tracing.places.step_place import Step, StepPlace
from megatron_nanguard.tracing.recording.events import SinkRead, Trace
from megatron_nanguard.tracing.recording.lineage import memory_of
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags
from megatron_nanguard.tracing.recording.observers import (
    CallForwarder,
    CallObserver,
    MarkerObserver,
    NewlyBadObserver,
    ProbeObserver,
)
from megatron_nanguard.tracing.recording.recorder import EventRecorder
from megatron_nanguard.tracing.walking.rank_trace import summarize

_Result = TypeVar("_Result")


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record every operator of the chosen micro-batch, and those of the schedule between micro-batches.

    Events have the same numbers in every traced pass of the same call, so that one pass can look closely at what the
    pass before it found. A fault of the tracer itself does not reach the step: the trace then says that it is broken.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        chunks: Sequence[Module],
        names: Mapping[Module, str],
        params: Mapping[Parameter, str],
        rank: int,
        microbatch: int | None,
        *,
        marker_fill: bool = False,
        probed_events: frozenset[int] = frozenset(),
        call_observer: CallObserver | None = None,
        call_listeners: Collection[CallListener] = (),
        look_when_newly_bad: bool = False,
    ) -> None:
        """Nothing is traced before the tracer is entered.

        Args:
            chunks: model chunks of this rank.
            names: global path of each module.
            params: global name of each parameter.
            rank: global rank.
            microbatch: the one to trace; None traces only what runs between micro-batches.
            marker_fill: fill fresh memory with a NaN of known bits; a step that reads it before it is written gives
                another result then.
            probed_events: numbers of events in an earlier pass that are looked at closely in this one.
            call_observer: gets arguments and result of each operator that leaves an event.
            call_listeners: hear of the calls of modules and autograd.Functions; their own faults must not reach us.
            look_when_newly_bad: look closely at each tensor that turns bad, for a call that cannot be run again; costs
                two host reads per tensor that an operator writes.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._rank, self._microbatch = rank, microbatch
        self._by_chunk = _params_by_chunk(chunks, params)
        self._shield = Shield()
        self._calls = CallStack(names, self._shielded)
        self._here = CurrentPlace(self._calls, params, microbatch, self._node_created, self._shielded)
        external = ExternalTensors(chunks, names, params)
        heads = attention_heads(chunks)
        self._flags = NonfiniteFlags()
        observers = (
            MarkerObserver() if marker_fill else None,
            ProbeObserver(probed_events, heads, external) if probed_events else None,
            CallForwarder(call_observer) if call_observer is not None else None,
            NewlyBadObserver(self._flags, heads) if look_when_newly_bad else None,
        )
        self._recorder = EventRecorder(self._here, self._calls, external, self._flags, tuple(filter(None, observers)))
        self._fills_with_marker = marker_fill
        self._call_listeners = tuple(call_listeners)
        self._was_traced = False
        self._sinks: list[SinkRead] = []
        self._entered = ExitStack()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled functions compiled: a mode would run them eagerly, with other bits and without a warning."""
        return True

    def __enter__(self) -> Tracer:
        """Start to trace."""
        self._entered.enter_context(self._here.following())
        self._entered.enter_context(self._recorder.pending.noting_waits())
        self._entered.enter_context(self._calls.following(self._recorder.regions, *self._call_listeners))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop tracing. The flags stay on the device until `finish`."""
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        self._entered.close()

    @contextmanager
    def at(self, microbatch: int | None, chunk: int, in_backward: bool) -> Iterator[None]:
        """Enter this around a forward or backward step of the schedule.

        Before the traced backward it looks at the gradients: what is bad by then, another step has made bad.

        Args:
            microbatch: zero-based; None for what belongs to no micro-batch.
            chunk: model chunk on this rank.
            in_backward: it is a backward step.
        """
        step = Step(microbatch, chunk, in_backward)
        with self._here.at(step), self._recorder.regions.at_step():
            if in_backward and microbatch is not None and microbatch == self._microbatch:
                self._with_modes_off(self._look_at_gradients, step, self._here.has_skipped)
            yield

    def after_backward(self, microbatch: int | None, chunk: int) -> None:
        """Look at the gradients after a backward step.

        Gradients whose reduction is under way are left out: other ranks' values are being added to them.

        Sync: none; one kernel per parameter, in the traced micro-batch and in those after it.
        """
        is_chosen = microbatch is not None and microbatch == self._microbatch
        self._was_traced |= is_chosen
        if self._was_traced:
            self._with_modes_off(self._look_at_gradients, Step(microbatch, chunk, True), not is_chosen)
        if is_chosen:
            self._with_modes_off(self._add_sinks, chunk)

    def add_loss(self, microbatch: int, loss: Tensor) -> None:
        """Add a loss to what the walk back starts from, if it belongs to the traced micro-batch.

        Sync: none.
        """
        if microbatch == self._microbatch:
            self._with_modes_off(self._sink, f"loss of micro-batch {microbatch}", loss)

    @property
    def is_in_microbatch(self) -> bool:
        """Whether the traced micro-batch runs now."""
        step = self._here.step
        return step.microbatch is not None and step.microbatch == self._microbatch

    @property
    def next_event(self) -> int:
        """Number that the next event will have."""
        return self._recorder.log.next_number

    def place(self) -> StepPlace:
        """Return where in the step the pass is now."""
        return self._here.place()

    def finish(self) -> None:
        """Look at all gradients as the optimizer would get them, then fetch all flags to the host.

        Sync: one host read per dtype and device.
        """
        for chunk in range(len(self._by_chunk)):
            for name, gradient in self._gradients(chunk):
                self._with_modes_off(self._sink, name, gradient)
        self._with_modes_off(self._recorder.finish)

    def summarize(self, coords: str) -> RankTrace:
        """Walk back from the bad gradients, losses and messages, and put the result into a record.

        Args:
            coords: of this rank, such as "tp1pp1dp0".
        """
        if self._shield.fault is not None:
            return RankTrace(
                rank=self._rank,
                coords=coords,
                microbatch=self._microbatch,
                labels=self._labels(),
                broken=self._shield.fault,
            )
        trace = Trace(self._recorder.log.events, self._sinks, self._recorder.log.output_names)
        return summarize(trace, self._flags, self._rank, coords, self._microbatch, self._labels())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at what the operator reads, run it, and look at what it wrote.

        A tensor that wraps others is left to its own class, which dispatches the inner tensors to this mode again. A
        fake tensor has no values, and its class relies on the operator to run.
        """
        kwargs = kwargs or {}
        if any(one.__torch_dispatch__ is not Tensor.__torch_dispatch__ for one in types):
            return func(*args, **kwargs) if FakeTensor in types else NotImplemented
        started = self._unseen(self._recorder.before, func, args, kwargs)
        result = func(*args, **kwargs)
        if started is not None:
            self._unseen(self._recorder.after, started, result)
        return result

    def _unseen(self, look: Callable[..., _Result], *args: object) -> _Result | None:
        """Call a function of ours inside of `__torch_dispatch__`, where only modes of others can see its operators."""
        if not torch._C._len_torch_dispatch_stack():
            return self._shielded(look, *args)
        with _disable_current_modes():
            return self._shielded(look, *args)

    def _look_at_gradients(self, step: Step, is_untraced: bool) -> None:
        for name, gradient in self._gradients(step.chunk):
            if not self._recorder.reader.is_under_way(gradient):
                place = StepPlace("accumulate", step, module_of(name), parameter=name)
                self._recorder.look_at_gradient(f"wgrad of {name}", gradient, place, is_untraced)

    def _add_sinks(self, chunk: int) -> None:
        for name, gradient in self._gradients(chunk):
            if not self._recorder.reader.is_under_way(gradient):
                self._sink(name, gradient)

    def _sink(self, name: str, tensor: Tensor) -> None:
        """Note a gradient or loss that the walk back starts from if it is bad."""
        memory = memory_of(tensor)
        if memory is not None:
            writers = self._recorder.reader.writers(memory)
            self._sinks.append(SinkRead(name, self._flags.put(memory), writers))

    def _gradients(self, chunk: int) -> Iterator[tuple[str, Tensor]]:
        for name, param in self._by_chunk[chunk]:
            gradient = local_gradient(param)
            memory = None if gradient is None else memory_of(gradient.data)
            if memory is not None:
                yield name, memory

    def _node_created(self, node: Node) -> None:
        self._recorder.regions.cpp_node_created(node)

    def _with_modes_off(self, look: Callable[..., None], *args: object) -> None:
        """Call a function outside of `__torch_dispatch__`, so that neither modes nor autograd see its operators."""
        if self._shield.fault is None:
            with _disable_current_modes(), torch.no_grad():
                self._shielded(look, *args)

    def _shielded(self, look: Callable[..., _Result], *args: object) -> _Result | None:
        """Call a function of ours. Its first fault is kept for the record, and ends the tracing."""
        if self._shield.fault is None:
            with self._shield("the tracer"):
                return look(*args)
        return None

    def _labels(self) -> tuple[str, ...]:
        """What is special about this pass."""
        labels = [MARKER_FILL] if self._fills_with_marker else []
        if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
            labels.append(
                "compiled helpers ran eagerly under the tracer: "
                "this torch cannot leave them compiled, so bits may differ"
            )
        if not self._here.tags_nodes:
            labels.append("Functions written in C++ were not followed: this torch has no hook on making nodes")
        return tuple(labels)


def _params_by_chunk(chunks: Sequence[Module], params: Mapping[Parameter, str]) -> list[list[tuple[str, Parameter]]]:
    """Names and parameters of each chunk. Parameters of no chunk, such as leaves of a callable, go with the first."""
    owners = {param: number for number, chunk in enumerate(chunks) for param in chunk.parameters()}
    by_chunk: list[list[tuple[str, Parameter]]] = [[] for _ in range(max(1, len(chunks)))]
    for param, name in params.items():
        by_chunk[owners.get(param, 0)].append((name, param))
    return by_chunk
