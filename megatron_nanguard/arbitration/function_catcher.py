"""Save the call of an autograd Function whose kernels the dispatcher does not see: inputs and output gradients.

catcher = FunctionCatcher("SwiGLUFunctionBackward", "decoder.layers.1.mlp", event=127, rank=5)
catcher.now = lambda: Moment(tracer.next_event, place.module, place.phase)
...                           a further replay of the step, in which the catcher hears of all calls
catcher.call                  a CaughtCall; `saved.why_not` says why where nothing was saved

The class is left as it is: `torch.compile` guards on its methods, and would compile again what had inlined them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from megatron_nanguard.arbitration.call_catcher import CAP_BYTES, CaughtCall, device_name, unsaved_call
from megatron_nanguard.arbitration.object_copies import copied
from megatron_nanguard.arbitration.packing import (
    CannotSave,
    Packer,
    check_size,
    describe_output,
    describe_tensors,
    host_copies,
    is_finite,
)
from megatron_nanguard.arbitration.repro import CannotRun, Function, LeftOut, named, version_of
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.records.suspect_call import SavedCall, SavedOutput
from megatron_nanguard.records.trace import TracedOrigin

_KEY = "_megatron_nanguard_inputs"


class Moment(NamedTuple):
    """Where the traced pass is.

    Attributes:
        event: number that the next event will have.
        module: global module path.
        phase: of the step.
    """

    event: int
    module: str = ""
    phase: str = ""


class FunctionCall(Protocol):
    """What the catcher reads of a call that runs.

    Attributes:
        name: such as "_Linear.forward" or "_LinearBackward".
        arguments: by name, as the frame has them.
        ctx: context of the Function; None where it was called without one.
        frame: of the call; None for a Function that is written in C++.
        function: class of the Function; None for one that is written in C++.
    """

    name: str
    arguments: Mapping[str, Any]
    ctx: Any
    frame: Any
    function: Any


@dataclass
class _Inputs:
    """The inputs of one call.

    Attributes:
        saved: describes them.
        tensors: in host memory.
        objects: copies of the arguments that no file holds, by name.
        live: the arguments themselves: of a forward all tensors until it ends, of a backward the parameters.
        began: number of the first event in the call.
        forward: how the call is made again.
    """

    saved: SavedCall
    tensors: dict[str, Tensor]
    objects: dict[str, Any]
    live: Mapping[str, Tensor]
    began: int
    forward: Callable[..., Any]


class FunctionCatcher:
    """Saves the call in which the chosen event happened.

    Where none is chosen, or it happens in no call: the first call with a bad result of finite inputs; else the first
    with a bad result; else the last.
    """

    def __init__(
        self,
        name: str,
        module: str | None = None,
        phase: str | None = None,
        event: int | None = None,
        cap_bytes: int = CAP_BYTES,
        *,
        rank: int = 0,
        in_marked_memory: bool = False,
    ) -> None:
        """Choose the call.

        Args:
            name: "SwiGLUFunction.forward", or "SwiGLUFunctionBackward".
            module: global path of the module that makes it; None for any.
            phase: of the step in which it runs; None for any.
            event: of the traced pass that happened in it.
            cap_bytes: largest inputs that are saved.
            rank: this global rank.
            in_marked_memory: the pass fills all fresh memory with a NaN.
        """
        self._in_marked_memory = in_marked_memory
        self._kind: Literal["forward", "backward"] = "backward" if name.endswith("Backward") else "forward"
        self._name = name.removesuffix(".forward").removesuffix("Backward")
        self._module, self._phase, self._event = module, phase, event
        self._cap_bytes, self._rank = cap_bytes, rank
        self._suspicion = 0
        self._open: dict[Any, _Inputs] = {}
        self._without_context: _Inputs | None = None
        self.now: Callable[[], Moment | None] = lambda: Moment(0)
        """Where the pass is; None where it is in no part of the step that matters."""
        self.is_unwritten: Callable[[Tensor], bool] = lambda tensor: False
        """Whether nothing was written into an argument yet, as far as the pass can know."""
        self.call = unsaved_call(rank, None, self._name, "it was not called again")

    @classmethod
    def of(cls, origin: TracedOrigin, name: str, rank: int, *, in_marked_memory: bool = False) -> FunctionCatcher:
        """A catcher for the call that an origin was found in.

        Args:
            origin: as the pass before traced it.
            name: of the region.
            rank: this global rank.
            in_marked_memory: the pass fills all fresh memory with a NaN.
        """
        place = origin.place
        return cls(name, place.module, place.phase, origin.event, rank=rank, in_marked_memory=in_marked_memory)

    # ------------------------------------------------------------- told by the tracer

    def entered(self, call: FunctionCall) -> None:
        """Copy the inputs of a call that may be the one."""
        is_backward = self._kind == "backward" and call.name == f"{self._name}Backward"
        if is_backward or call.name == f"{self._name}.forward":
            self._quietly(self._begin, call)

    def left(self, call: FunctionCall, result: object) -> None:
        """Look at the results of a call; of a forward, keep the inputs for its backward."""
        inputs = self._open.pop(call, None)
        if inputs is not None:
            self._quietly(self._end, call, inputs, result)

    def raised(self, call: FunctionCall) -> None:
        """Forget a call that has ended by an exception."""
        self._open.pop(call, None)

    def context_is_set_up(self, ctx: Any, inputs: Mapping[str, object]) -> None:
        """Keep the inputs of a forward without a context, for its backward."""
        if self._without_context is not None:
            setattr(ctx, _KEY, self._without_context)
            self._without_context = None

    # ------------------------------------------------------------------------ looking

    def _begin(self, call: FunctionCall) -> None:
        moment = self.now()
        if moment is None or self._module not in (None, moment.module):
            return
        is_forward = call.name.endswith(".forward")
        if self._phase not in (None, moment.phase) and is_forward == (self._kind == "forward"):
            return
        if is_forward:
            self._open[call] = self._inputs(call, moment.event)
        elif self._kind == "backward":
            inputs: _Inputs | None = getattr(call.ctx, _KEY, None)
            if inputs is not None:
                self._open[call] = replace(self._with_gradients(inputs, call), began=moment.event)
            elif call.function is None:
                why_not = "its forward is written in C++, and cannot be called from here"
                self.call = unsaved_call(self._rank, None, self._name, why_not)

    def _end(self, call: FunctionCall, inputs: _Inputs, result: Any) -> None:
        if self._kind == "backward" and call.name.endswith(".forward"):
            # Parameters live on anyway; another tensor must not live longer than without a catcher.
            weights = {name: tensor for name, tensor in inputs.live.items() if isinstance(tensor, Parameter)}
            inputs = replace(inputs, live=weights)
            if call.ctx is not None:
                setattr(call.ctx, _KEY, inputs)
            elif not _takes_context(call.function):
                self._without_context = inputs
            return
        results = _gradients(inputs, result) if self._kind == "backward" else _results(inputs, result)
        outputs = tuple(describe_output(name, tensor) for name, tensor in results.items())
        suspicion = self._suspicion_of(inputs, outputs)
        if suspicion > self._suspicion or self._suspicion == suspicion == 0:
            self._suspicion = suspicion
            saved = replace(inputs.saved, outputs=outputs)
            self.call = CaughtCall(saved, inputs.tensors, function=_function(inputs))

    def _suspicion_of(self, inputs: _Inputs, outputs: Sequence[SavedOutput]) -> int:
        moment = self.now()
        if self._event is not None and moment is not None and inputs.began <= self._event < moment.event:
            return 3
        if all(output.is_finite for output in outputs):
            return 0
        return 2 if all(meta.is_finite for meta in inputs.saved.tensors.values()) else 1

    def _inputs(self, call: FunctionCall, began: int) -> _Inputs:
        cls = call.function
        arguments = _positional(call)
        packer = Packer()
        memo: dict[int, Any] = {}
        packed = tuple(packer.of_function(name, value) for name, value in arguments.items())
        objects = {name: copied(value, memo) for name, value in arguments.items() if _is_left_out(packer, name, value)}
        saved = SavedCall(
            rank=self._rank,
            kind=self._kind,
            operator=self._name,
            source="" if "<locals>" in cls.__qualname__ else f"{cls.__module__}:{cls.__qualname__}",
            args=packed,
            notes=tuple(f"{why}; it is left out" for why in packer.left_out.values()),
            device=device_name(packer.tensors),
            in_marked_memory=self._in_marked_memory,
            versions=_versions(cls),
        )
        has_context = call.ctx is not None or not _takes_context(cls)
        forward = cls.apply if has_context or self._kind == "backward" else lambda *args: cls.forward(None, *args)
        return self._with_tensors(_Inputs(saved, {}, objects, dict(packer.tensors), began, forward), packer.tensors)

    def _with_gradients(self, inputs: _Inputs, call: FunctionCall) -> _Inputs:
        packer = Packer()
        gradients = list(_flat(call))
        try:
            packed = tuple(packer.argument(f"grad_output.{index}", grad) for index, grad in enumerate(gradients))
        except CannotSave as error:
            return replace(inputs, saved=replace(inputs.saved, why_not=str(error)), tensors={})
        return self._with_tensors(replace(inputs, saved=replace(inputs.saved, grad_outputs=packed)), packer.tensors)

    def _with_tensors(self, inputs: _Inputs, live: Mapping[str, Tensor]) -> _Inputs:
        if inputs.saved.why_not:
            return inputs
        try:
            check_size({**inputs.tensors, **live}, self._cap_bytes)
        except CannotSave as error:
            return replace(inputs, saved=replace(inputs.saved, why_not=str(error)), tensors={})
        unwritten = {name for name, tensor in live.items() if self.is_unwritten(tensor)}
        copies = host_copies(live)
        copies |= {name: torch.zeros_like(copies[name]) for name in unwritten}
        described = {**inputs.saved.tensors, **describe_tensors(copies, live, unwritten)}
        return replace(inputs, saved=replace(inputs.saved, tensors=described), tensors={**inputs.tensors, **copies})

    def _quietly(self, look: Callable[..., None], *args: Any) -> None:
        """Call a function of ours: the tracer does not see its operators, and neither does the step its faults."""
        shield = Shield()
        with shield("a catcher of calls"), _disable_current_modes(), torch.no_grad():
            look(*args)
        if shield.fault is not None and not self._suspicion:
            self.call = unsaved_call(self._rank, None, self._name, f"it could not be saved: {shield.fault}")


def _results(inputs: _Inputs, result: Any) -> dict[str, Tensor]:
    """The results of a forward, and the arguments that it has overwritten with bad values."""
    found = dict(named(result, inputs.live or {"": None}))
    for name, tensor in inputs.live.items():
        meta = inputs.saved.tensors.get(name)
        if meta is not None and meta.is_finite and not is_finite(tensor):
            found[name] = tensor
    return found


def _gradients(inputs: _Inputs, result: Any) -> dict[str, Tensor]:
    """The gradients that a backward has returned, or has added to a weight itself while it returned a dummy."""
    results = result if isinstance(result, tuple | list) else (result,)
    found = {}
    for argument, gradient in zip(inputs.saved.args, results, strict=False):
        weight = inputs.live.get(argument.name)
        main_grad = getattr(weight, "main_grad", None)
        is_added = gradient is None or getattr(weight, "grad_added_to_main_grad", False)
        if isinstance(main_grad, Tensor) and is_added:
            found[f"wgrad of {argument.name}"] = main_grad
        elif isinstance(gradient, Tensor):
            found[f"grad of {argument.name}"] = gradient
    return found


def _function(inputs: _Inputs) -> Function:
    """Make the call in this process; what no file holds is copied once more, since a run may change it."""

    def apply(args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        memo: dict[int, Any] = {}
        again = []
        for name, value in args.items():
            inside = value if isinstance(value, list) else [value]
            if any(isinstance(one, LeftOut) for one in inside):
                if name not in inputs.objects:
                    raise CannotRun(f"argument {name} could not be copied")
                value = copied(inputs.objects[name], memo)
            again.append(value)
        return inputs.forward(*again)

    return apply


def _is_left_out(packer: Packer, name: str, value: object) -> bool:
    """Whether an argument, or a part of it, has no form in a file."""
    if isinstance(value, list | tuple):
        return any(f"{name}.{index}" in packer.left_out for index in range(len(value)))
    return name in packer.left_out


def _positional(call: FunctionCall) -> dict[str, Any]:
    """The arguments of a forward in their order, without the context; `args.0` and so on for those of `*args`."""
    takes_context = _takes_context(call.function)
    values = list(_flat(call))[int(takes_context and call.ctx is None) :]
    parameters = list(inspect.signature(call.function.forward).parameters.values())[int(takes_context) :]
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        *parameters, star = parameters
        gathered = [f"{star.name}.{index}" for index in range(len(values) - len(parameters))]
    else:
        gathered = []
    names = [parameter.name for parameter in parameters] + gathered
    return dict(zip(names, values, strict=False))


def _flat(call: FunctionCall) -> Iterator[Any]:
    """The arguments of a call; those of `*args` one by one."""
    code = call.frame.f_code
    has_star = code.co_flags & inspect.CO_VARARGS
    star = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if has_star else ""
    for name, value in call.arguments.items():
        yield from value if name == star else (value,)


def _takes_context(cls: Any) -> bool:
    """Whether `forward` takes the context; else `setup_context` does."""
    return bool(cls.setup_context is _SingleLevelFunction.setup_context)


def _versions(cls: Any) -> dict[str, str]:
    """Versions of torch and of the package that the Function is from."""
    package = cls.__module__.partition(".")[0]
    versions = {"torch": str(torch.__version__), package: version_of(package)}
    return {name: version for name, version in versions.items() if version}
