"""The stack of module calls, and of forwards and backwards of autograd.Functions, that run in the traced pass.

Code objects are watched, nothing is patched. So the stack also has the calls that pass by `Function.apply`, such as
`_Linear.forward(None, ...)`, which Transformer Engine makes where no gradient is needed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, Literal, NamedTuple, Protocol

import torch
from torch.autograd.function import FunctionCtx, FunctionMeta, _SingleLevelFunction
from torch.nn import Module

from megatron_nanguard.patching.engine import subclasses
from megatron_nanguard.tracing.calls.code_watch import CodeWatch

CallPart = Literal["step", "module", "forward", "backward"]

_MODULE_CALL: Final = Module._call_impl.__code__
_CLASS_MADE: Final = FunctionMeta.__init__.__code__
_MOST_DECORATORS: Final = 4
_METHODS: Final = {"forward": "forward", "backward": "backward", "vjp": "backward", "setup_context": "setup_context"}


@dataclass(eq=False)
class RunningCall:
    """A call that runs.

    Attributes:
        part: of a module, or the forward or backward of an autograd.Function; "step" is what is around all calls.
        name: such as "_Linear.forward" or "_LinearBackward"; empty for a module and a step.
        arguments: by name, without the context of a Function; those of a module as `args` and `kwargs`.
        frame: of the call; None for a Function that is written in C++.
        module: whose call it is.
        ctx: context of the Function; None where it was called without one.
        function: class of the Function.
    """

    part: CallPart
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    frame: FrameType | None = None
    module: Module | None = None
    ctx: Any = None
    function: Any = None

    @property
    def is_function(self) -> bool:
        """Whether it is the forward or backward of an autograd.Function."""
        return self.part in ("forward", "backward")


class CallListener(Protocol):
    """Is told when calls begin and end."""

    def entered(self, call: RunningCall) -> None:
        """A call has begun."""

    def left(self, call: RunningCall, result: object) -> None:
        """A call has returned; it is no longer on the stack."""

    def raised(self, call: RunningCall) -> None:
        """A call has ended by an exception; it is no longer on the stack."""

    def context_is_set_up(self, ctx: Any, inputs: Mapping[str, object]) -> None:
        """The `setup_context` of a Function has returned, whose forward has no context."""


class _Method(NamedTuple):
    function: Any
    part: str


class CallStack:
    """The calls that run, innermost last.

    One stack serves the thread that traces and those of the autograd engine, which run while that one waits. Other
    threads, such as those of a data loader, are left alone: a thread of the engine has inherited that the backward does
    not run in several threads, which is so while a pass is traced.

    Attributes:
        before_change: called before a call begins or ends.
    """

    def __init__(self, names: Mapping[Module, str], shielded: Callable[..., object]) -> None:
        """Nothing is followed before `following` is entered.

        Args:
            names: global path of each module.
            shielded: ``shielded(function, *args)`` calls a function of ours; its faults do not reach the step.
        """
        self._names, self._shielded = names, shielded
        self.before_change: Callable[[], None] = _nothing
        self._calls = [RunningCall("step")]
        self._methods: dict[CodeType, _Method] = {}
        self._listeners: tuple[CallListener, ...] = ()
        self._thread = 0
        self._watch = CodeWatch(
            *(partial(self._if_traced, one) for one in (self._started, self._returned, self._raised))
        )

    @property
    def current(self) -> RunningCall:
        """The innermost call."""
        return self._calls[-1]

    @property
    def module(self) -> str:
        """Global path of the innermost module that has one, else the class of the innermost; empty if none runs."""
        modules = [call.module for call in reversed(self._calls) if call.module is not None]
        named = next((name for module in modules if (name := self._names.get(module))), "")
        return named or (type(modules[0]).__name__ if modules else "")

    @property
    def is_in_forward(self) -> bool:
        """Whether the innermost Function that runs is in its forward."""
        return next((call.part == "forward" for call in reversed(self._calls) if call.is_function), False)

    @contextmanager
    def following(self, *listeners: CallListener) -> Iterator[None]:
        """Follow the calls of modules and of all Functions, also of those that are defined meanwhile.

        Args:
            listeners: the last one is the first to hear that a call has begun, and the last to hear that it has ended.
        """
        self._listeners, self._thread = listeners, threading.get_ident()
        for code in (_MODULE_CALL, _CLASS_MADE):
            self._watch.add(code)
        for function in subclasses(_SingleLevelFunction):
            self._shielded(self._add, function)
        with self._watch.watching():
            try:
                yield
            finally:
                self._listeners = ()
                del self._calls[1:]

    def push(self, call: RunningCall) -> None:
        """Begin a call that has no frame."""
        self._shielded(self._begin, call)

    def pop(self, call: RunningCall, result: object) -> None:
        """End it."""
        self._shielded(self._end, call, result)

    def _begin(self, call: RunningCall) -> None:
        self.before_change()
        self._calls.append(call)
        for listener in reversed(self._listeners):
            listener.entered(call)

    def _end(self, call: RunningCall, result: object) -> None:
        if self._take(call):
            for listener in self._listeners:
                listener.left(call, result)

    def _add(self, function: Any) -> None:
        """Watch the methods of a Function; those that torch itself defines for all Functions do nothing."""
        for name, part in _METHODS.items():
            code = _code_of(function.__dict__.get(name))
            if code is not None and function.__module__ != "torch.autograd.function":
                self._methods.setdefault(code, _Method(function, part))
                self._watch.add(code)

    def _if_traced(self, follow: Callable[..., object], *args: object) -> None:
        is_of_engine = torch._C._current_autograd_node() is not None and not torch._C._is_multithreading_enabled()
        if threading.get_ident() == self._thread or is_of_engine:
            self._shielded(follow, *args)

    def _started(self, frame: FrameType) -> None:
        if frame.f_code is _MODULE_CALL:
            arguments = _arguments(frame)
            self._begin(RunningCall("module", "", arguments, frame, module=arguments.pop("self")))
        elif frame.f_code is not _CLASS_MADE:
            function, part = self._methods[frame.f_code]
            if part != "setup_context":
                self._begin(_function_call(frame, function, part))

    def _returned(self, frame: FrameType, result: object) -> None:
        if frame.f_code is _CLASS_MADE:
            self._add(frame.f_locals[frame.f_code.co_varnames[0]])
            return
        method = self._methods.get(frame.f_code)
        if method is None or method.part != "setup_context":
            call = self._running(frame)
            if call is not None:
                self._end(call, result)
        elif self._listeners:
            given: list[Any] = [*_arguments(frame).values(), None, None]
            ctx, inputs = given[:2]
            if isinstance(ctx, FunctionCtx) and isinstance(inputs, tuple):
                names = inspect.signature(method.function.forward).parameters
                for listener in self._listeners:
                    listener.context_is_set_up(ctx, dict(zip(names, inputs, strict=False)))

    def _raised(self, frame: FrameType) -> None:
        call = self._running(frame)
        if call is not None and self._take(call):
            for listener in self._listeners:
                listener.raised(call)

    def _running(self, frame: FrameType) -> RunningCall | None:
        return next((call for call in reversed(self._calls) if call.frame is frame), None)

    def _take(self, call: RunningCall) -> bool:
        """Take a call and what is above it from the stack; whether it was there."""
        if call not in self._calls:
            return False
        self.before_change()
        del self._calls[self._calls.index(call) :]
        return True


def _nothing() -> None:
    """Do nothing: no one waits for calls to begin or end."""


def _function_call(frame: FrameType, function: Any, part: str) -> RunningCall:
    arguments = _arguments(frame)
    ctx = next((value for value in arguments.values() if isinstance(value, FunctionCtx)), None)
    # Classes that one function defines, such as those of compiled graphs, share their code: the context knows its own.
    function = getattr(type(ctx), "_forward_cls", function)
    is_forward = part == "forward"
    return RunningCall(
        "forward" if is_forward else "backward",
        f"{function.__name__}.forward" if is_forward else f"{function.__name__}Backward",
        {name: value for name, value in arguments.items() if value is not ctx or ctx is None},
        frame,
        ctx=ctx,
        function=function,
    )


def _arguments(frame: FrameType) -> dict[str, Any]:
    """The arguments of a call by name."""
    code, values = frame.f_code, frame.f_locals
    num = code.co_argcount + code.co_kwonlyargcount
    num += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return {name: values[name] for name in code.co_varnames[:num] if name in values}


def _code_of(method: Any) -> CodeType | None:
    """The code that a method runs in the end. That of a decorator would serve all methods that it decorates."""
    function = getattr(method, "__func__", method)
    try:
        function = inspect.unwrap(function)
        for _ in range(_MOST_DECORATORS):
            function = inspect.unwrap(_decorated(function) or function)
    except ValueError:  # The decorators form a cycle, or a variable that one refers to has no value yet.
        return None
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _decorated(function: Any) -> Any:
    """The function that a partial, or a decorator without `functools.wraps`, calls; None for any other function.

    Such a decorator takes any arguments, while a method of a Function takes at least its context by name.
    """
    if isinstance(function, partial):
        return function.func
    if not isinstance(function, FunctionType) or function.__code__.co_argcount or not function.__closure__:
        return None
    inner = [value for value in inspect.getclosurevars(function).nonlocals.values() if isinstance(value, FunctionType)]
    return inner[0] if len(inner) == 1 else None
