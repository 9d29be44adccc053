"""Hooks on the watched modules. They change neither results nor graph, and are removed at the first bad values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from megatron_nanguard.tensor_names import named_tensors
from megatron_nanguard.watching.bad_values import BadValues, WatchPhase
from megatron_nanguard.watching.gradient_edges import border_nodes
from megatron_nanguard.watching.watched_call import ForwardTensors, WatchedCall

Guarded = Callable[[str], AbstractContextManager[None]]


class ModuleHooks:
    """Checks each forward and backward of some modules until something is beyond the limit.

    The check is made at once, not at the end of the step, when the activations would be gone. It costs one host read
    per forward and per backward of a watched module, whose inputs and outputs stay in memory until its backward. As a
    context manager it ends with its `with` block.

    Attributes:
        hit: the first bad values, with copies of the tensors; None as long as there are none.
    """

    def __init__(
        self,
        modules: Mapping[str, Module],
        above: float | None,
        on_hit: Callable[[BadValues], None],
        guarded: Guarded = lambda where: nullcontext(),
    ) -> None:
        """Store the options; `begin` adds the hooks.

        Args:
            modules: by name.
            above: magnitude above which finite values count as bad.
            on_hit: called once, with the first bad values.
            guarded: context manager around every hook, such as the shield; takes the name of the place.
        """
        self._modules, self._above, self._on_hit, self._guarded = modules, above, on_hit, guarded
        self._handles: list[RemovableHandle] = []
        self._running: dict[Module, WatchedCall] = {}
        self._numbers: Counter[tuple[str, WatchPhase]] = Counter()
        self._step: int | None = None
        self.is_active = False
        self.hit: BadValues | None = None

    def begin(self, step: int | None = None) -> None:
        """Add the hooks."""
        self._step, self.is_active = step, True
        for name, module in self._modules.items():
            before, after = partial(self._before, name), partial(self._after, name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def __enter__(self) -> ModuleHooks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the hooks; those on autograd graphs that still exist do nothing from now on."""
        self.is_active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()
        self._numbers.clear()

    def _before(self, name: str, module: Module, args: object, kwargs: object) -> None:
        with self._guarded("watch"):
            phase: WatchPhase = "forward" if torch._C._current_autograd_node() is None else "recompute"
            number = self._numbers[name, phase]
            self._numbers[name, phase] += 1
            inputs = dict(named_tensors(args)) | dict(named_tensors(kwargs))
            self._running[module] = WatchedCall.begin(module, name, phase, number, inputs)

    def _after(self, name: str, module: Module, args: object, kwargs: object, output: object) -> None:
        with self._guarded("watch"):
            call = self._running.pop(module, None)
            if call is None:
                return
            outputs = dict(named_tensors(output))
            call.outputs = ForwardTensors(outputs)
            if call.has_bad_outputs(self._above):
                self._report(call, call.phase)
            elif torch.is_grad_enabled():
                self._follow(call, outputs)

    def _follow(self, call: WatchedCall, outputs: Mapping[str, Tensor]) -> None:
        """Hook the outputs and the border nodes of the module; a hook exists as long as its node."""
        borders = border_nodes(outputs.values(), call.edges, call.began)
        call.borders = len(borders)
        call.edges.clear()
        for name, tensor in outputs.items():
            if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= call.began:
                tensor.register_hook(partial(self._output_gradient_computed, call, name))  # type: ignore[no-untyped-call]
        for node, names in borders.items():
            node.register_hook(partial(self._border_node_ran, call, names))

    def _output_gradient_computed(self, call: WatchedCall, name: str, gradient: Tensor) -> None:
        if self.is_active:
            with self._guarded("watch"):
                call.grad_output[name] = gradient.detach()
                if not call.borders:  # no input requires grad
                    self._check_gradients(call)

    def _border_node_ran(
        self, call: WatchedCall, names: Mapping[int, str], grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]
    ) -> None:
        if self.is_active:
            with self._guarded("watch"):
                for position, name in names.items():
                    if grad_inputs[position] is not None:
                        call.add_grad_input(name, grad_inputs[position])
                call.borders -= 1
                self._check_gradients(call)

    def _check_gradients(self, call: WatchedCall) -> None:
        if call.has_bad_gradients(self._above):
            self._report(call, "backward")
        elif not call.borders:
            call.release()

    def _report(self, call: WatchedCall, phase: WatchPhase) -> None:
        self.hit = call.bad_values(phase, self._step, self._above)
        self.stop()
        self._on_hit(self.hit)
