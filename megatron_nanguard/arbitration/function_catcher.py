"""Save the call of an autograd Function whose kernels the dispatcher does not see: inputs and output gradients.

with FunctionCatcher("SwiGLUFunctionBackward", lambda: module == "decoder.layers.1.mlp", rank=5) as catcher:
    ...                       a further replay of the step
catcher.call                  a CaughtCall; `saved.why_not` says why where nothing was saved
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import _disable_current_modes

from megatron_nanguard.arbitration.call_catcher import CAP_BYTES, CaughtCall, device_name, unsaved_call
from megatron_nanguard.arbitration.packing import (
    CannotSave,
    Packer,
    check_size,
    describe_output,
    describe_tensors,
    host_copies,
)
from megatron_nanguard.arbitration.repro import CannotRun, Function, find_class
from megatron_nanguard.records.suspect_call import Argument, SavedCall, Value

_Result = TypeVar("_Result")
_KEY = "_megatron_nanguard_inputs"


@dataclass
class _Inputs:
    """The inputs of one forward in host memory."""

    saved: SavedCall
    tensors: dict[str, Tensor]


class FunctionCatcher:
    """Saves the first call with a bad result of finite inputs; else the first with a bad result; else the last."""

    def __init__(
        self, name: str, is_wanted: Callable[[], bool] = lambda: True, cap_bytes: int = CAP_BYTES, *, rank: int = 0
    ) -> None:
        """Choose the Function.

        Args:
            name: of the class or of its autograd node: "SwiGLUFunction", "SwiGLUFunctionBackward".
            is_wanted: called in every forward; whether it is the module and micro-batch in question.
            cap_bytes: largest inputs that are saved.
            rank: this global rank.
        """
        self._kind: Literal["forward", "backward"] = "backward" if name.endswith("Backward") else "forward"
        self._name = name.removesuffix("Backward")
        self.is_wanted, self._cap_bytes, self._rank = is_wanted, cap_bytes, rank
        self._suspicion = 0
        self._undo = ExitStack()
        self.call = unsaved_call(rank, None, self._name, "it was not called again")

    def __enter__(self) -> FunctionCatcher:
        """Wrap forward and backward of the class."""
        cls = find_class(self._name)
        if cls is None:
            self.call = unsaved_call(self._rank, None, self._name, "no autograd Function of that name is loaded")
            return self
        self._cls, self._parameters = cls, _parameters(cls)
        self._wrap("forward" if _has_context(cls) else "setup_context", self._forward)
        if self._kind == "backward":
            self._wrap("backward", self._backward)
        return self

    def __exit__(self, *exc: object) -> None:
        """Put the original methods back."""
        self._undo.close()

    def _wrap(self, method: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(self._cls, method)
        own = self._cls.__dict__.get(method)
        # Keep the signature: the tracer names gradients after the arguments of the forward.
        setattr(self._cls, method, staticmethod(wraps(original)(lambda *args: wrapper(original, *args))))
        if own is None:
            self._undo.callback(delattr, self._cls, method)
        else:
            self._undo.callback(setattr, self._cls, method, own)

    def _forward(self, original: Callable[..., Any], ctx: Any, *args: Any) -> Any:
        """Run `forward(ctx, *inputs)`, or `setup_context(ctx, inputs, output)` where the forward has no context."""
        has_context = _has_context(self._cls)
        inputs = _quietly(self._inputs, args if has_context else args[0]) if self.is_wanted() else None
        result = original(ctx, *args)
        self._leave(inputs, ctx, result if has_context else args[1])
        return result

    def _leave(self, inputs: _Inputs | None, ctx: Any, result: Any) -> None:
        if inputs is None:
            return
        if self._kind == "backward":
            setattr(ctx, _KEY, inputs)
        else:
            results = [result] if isinstance(result, Tensor) else list(result)
            _quietly(self._keep, inputs, {str(index): value for index, value in enumerate(results)})

    def _backward(self, original: Callable[..., Any], ctx: Any, *grads: Any) -> Any:
        inputs: _Inputs | None = getattr(ctx, _KEY, None)
        if inputs is not None:
            inputs = _quietly(self._with_gradients, inputs, grads)
        result = original(ctx, *grads)
        if inputs is not None:
            results = [result] if result is None or isinstance(result, Tensor) else list(result)
            names = [f"grad of {argument.name}" for argument in inputs.saved.args]
            _quietly(self._keep, inputs, dict(zip(names, results, strict=False)))
        return result

    def _inputs(self, args: Sequence[object]) -> _Inputs:
        packer, packed, notes = Packer(), [], []
        for name, value in zip(self._names_of(args), args, strict=False):
            try:
                packed.append(packer.argument(name, value))
            except CannotSave as error:
                notes.append(f"{error}; it is left out")
                packed.append(Argument(name, (Value("none"),)))
        saved = SavedCall(
            rank=self._rank,
            kind=self._kind,
            operator=self._name,
            args=tuple(packed),
            notes=tuple(notes),
            device=device_name(packer.tensors),
            versions={"torch": str(torch.__version__)},
        )
        return self._with_tensors(_Inputs(saved, {}), packer.tensors)

    def _names_of(self, args: Sequence[object]) -> list[str]:
        """Argument names by the signature; `args.0` and so on for those of `*args`."""
        parameters = self._parameters
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
            named, star = parameters[:-1], parameters[-1].name
            gathered = [f"{star}.{index}" for index in range(len(args) - len(named))]
            return [parameter.name for parameter in named] + gathered
        return [parameter.name for parameter in parameters]

    def _with_gradients(self, inputs: _Inputs, grads: Sequence[object]) -> _Inputs:
        packer = Packer()
        try:
            packed = tuple(packer.argument(f"grad_output.{index}", grad) for index, grad in enumerate(grads))
        except CannotSave as error:
            return _Inputs(replace(inputs.saved, why_not=str(error)), {})
        return self._with_tensors(replace(inputs, saved=replace(inputs.saved, grad_outputs=packed)), packer.tensors)

    def _with_tensors(self, inputs: _Inputs, live: dict[str, Tensor]) -> _Inputs:
        if inputs.saved.why_not:
            return inputs
        try:
            check_size({**inputs.tensors, **live}, self._cap_bytes)
        except CannotSave as error:
            return _Inputs(replace(inputs.saved, why_not=str(error)), {})
        copies = host_copies(live)
        described = {**inputs.saved.tensors, **describe_tensors(copies, live)}
        return _Inputs(replace(inputs.saved, tensors=described), {**inputs.tensors, **copies})

    def _keep(self, inputs: _Inputs, results: dict[str, object]) -> None:
        outputs = tuple(describe_output(name, tensor) for name, tensor in results.items() if isinstance(tensor, Tensor))
        suspicion = 0
        if not all(output.is_finite for output in outputs):
            suspicion = 2 if all(meta.is_finite for meta in inputs.saved.tensors.values()) else 1
        if suspicion > self._suspicion or self._suspicion == suspicion == 0:
            self._suspicion = suspicion
            saved = replace(inputs.saved, outputs=outputs)
            self.call = CaughtCall(saved, inputs.tensors, function=self._function(saved.notes))

    def _function(self, notes: Sequence[str]) -> Function:
        cls = self._cls

        def apply(args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
            if notes:
                raise CannotRun(notes[0])
            return cls.apply(*args.values())

        return apply


def _quietly(look: Callable[..., _Result], *args: Any) -> _Result:
    """Call a function outside of the tracer: the numbers of its events must stay those of the pass before."""
    with _disable_current_modes(), torch.no_grad():
        return look(*args)


def _has_context(cls: Any) -> bool:
    """Whether `forward` takes the context; else `setup_context` does."""
    return cls.setup_context is _SingleLevelFunction.setup_context


def _parameters(cls: Any) -> list[inspect.Parameter]:
    """Parameters of the forward without the context."""
    found = list(inspect.signature(cls.forward).parameters.values())
    return found[1:] if _has_context(cls) else found
