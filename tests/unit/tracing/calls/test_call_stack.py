"""The calls that run: which module is current, and which forwards and backwards of Functions are seen."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from megatron_nanguard.tracing.calls.call_stack import CallStack, RunningCall


def unshielded(function: Callable[..., Any], *args: object) -> Any:
    """Call without the shield of a tracer."""
    return function(*args)


class Diary:
    """Writes down what a call stack tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entered_calls: list[RunningCall] = []

    def entered(self, call: RunningCall) -> None:
        self.lines.append(f"> {call.name or call.part}")
        self.entered_calls.append(call)

    def left(self, call: RunningCall, result: object) -> None:
        self.lines.append(f"< {call.name or call.part}")

    def raised(self, call: RunningCall) -> None:
        self.lines.append(f"! {call.name or call.part}")

    def context_is_set_up(self, ctx: Any, inputs: Mapping[str, object]) -> None:
        self.lines.append(f"saves {', '.join(inputs)}")


class Speaker(nn.Module):
    """Notes which module is current when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.stack = CallStack({}, unshielded)

    def forward(self, x: Tensor) -> Tensor:
        self.heard.append(self.stack.module)
        return x


class Failing(nn.Module):
    """Raises in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("planted")


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, more: float = 1.0) -> Tensor:
        return x * 2 * more

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2, None


class SetUpApart(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, more: float) -> Tensor:
        return x * more

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.more = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.more, None


def without_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        raise ValueError("planted")


@pytest.fixture(params=["monitoring", "profile"])
def _how_calls_are_seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "profile":
        monkeypatch.setattr("megatron_nanguard.tracing.calls.code_watch._take_tool", lambda: None)
    yield


pytestmark = pytest.mark.usefixtures("_how_calls_are_seen")


def speaker_and_stack(name: str = "") -> tuple[Speaker, CallStack]:
    speaker = Speaker()
    speaker.stack = CallStack({speaker: name} if name else {}, unshielded)
    return speaker, speaker.stack


def heard(run: Callable[[], object]) -> list[str]:
    """What is told of a run."""
    diary = Diary()
    with CallStack({}, unshielded).following(diary):
        run()
    return diary.lines


def test_innermost_module_is_current_by_its_global_path() -> None:
    speaker, stack = speaker_and_stack("layers.0.speaker")
    with stack.following(Diary()):
        nn.Sequential(speaker)(torch.ones(1))
        assert stack.module == ""
    assert speaker.heard == ["layers.0.speaker"]


def test_module_without_a_path_is_named_by_its_class() -> None:
    speaker, stack = speaker_and_stack()
    with stack.following(Diary()):
        speaker(torch.ones(1))
    assert speaker.heard == ["Speaker"]


def test_hooks_of_a_module_run_inside_of_it() -> None:
    speaker, stack = speaker_and_stack("layers.0.speaker")
    speaker.register_forward_pre_hook(lambda module, args: speaker.heard.append(f"before: {stack.module}"))
    speaker.register_forward_hook(lambda module, args, output: speaker.heard.append(f"after: {stack.module}"))
    with stack.following(Diary()):
        nn.Sequential(speaker)(torch.ones(1))
    assert speaker.heard == ["before: layers.0.speaker", "layers.0.speaker", "after: layers.0.speaker"]


@pytest.mark.parametrize("has_hook", [True, False])
def test_a_call_that_raises_is_no_longer_on_the_stack(has_hook: bool) -> None:
    stack, failing = CallStack({}, unshielded), Failing()
    if has_hook:
        failing.register_forward_hook(lambda module, args, output: None)
    with stack.following(Diary()):
        with pytest.raises(ValueError, match="planted"):
            nn.Sequential(failing)(torch.ones(1))
        assert stack.module == ""
        with pytest.raises(ValueError, match="planted"):
            Raising.apply(torch.ones(1))
        assert stack.current.part == "step"


def test_nothing_is_followed_outside() -> None:
    speaker, stack = speaker_and_stack("layers.0.speaker")
    with stack.following(Diary()):
        pass
    speaker(torch.ones(1))
    assert speaker.heard == [""]


def test_forward_and_backward_of_a_function_are_seen() -> None:
    x = torch.ones(1, requires_grad=True)
    lines = heard(lambda: Twice.apply(x).backward())
    assert lines == ["> Twice.forward", "< Twice.forward", "> TwiceBackward", "< TwiceBackward"]


def test_a_kept_apply_and_a_forward_that_is_called_directly_are_seen() -> None:
    kept = Twice.apply
    assert heard(lambda: kept(torch.ones(1))) == ["> Twice.forward", "< Twice.forward"]
    assert heard(lambda: Twice.forward(None, torch.ones(1))) == ["> Twice.forward", "< Twice.forward"]


def test_what_is_set_up_apart_is_told_with_its_inputs() -> None:
    x = torch.ones(1, requires_grad=True)
    lines = heard(lambda: SetUpApart.apply(x, 3.0).backward())
    assert lines[:3] == ["> SetUpApart.forward", "< SetUpApart.forward", "saves x, more"]
    assert lines[3:] == ["> SetUpApartBackward", "< SetUpApartBackward"]


def test_a_function_that_is_defined_meanwhile_is_seen() -> None:
    def run() -> None:
        class Late(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * 2

        Late.apply(torch.ones(1, requires_grad=True)).backward()

    assert heard(run) == ["> Late.forward", "< Late.forward", "> LateBackward", "< LateBackward"]


def test_classes_that_share_their_code_are_told_apart_by_the_context() -> None:
    def made(name: str) -> Any:
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (torch.autograd.Function,), methods)

    first, second = made("First"), made("Second")
    x = torch.ones(1, requires_grad=True)
    assert heard(lambda: second.apply(first.apply(x)).backward())[::2] == [
        "> First.forward",
        "> Second.forward",
        "> SecondBackward",
        "> FirstBackward",
    ]


def test_arguments_are_known_by_name_without_the_context() -> None:
    diary, x = Diary(), torch.ones(1, requires_grad=True)
    with CallStack({}, unshielded).following(diary):
        Twice.apply(x, 3.0)
    (call,) = diary.entered_calls
    assert (list(call.arguments), call.arguments["more"]) == (["x", "more"], 3.0)
    assert call.ctx is not None


class Decorated(torch.autograd.Function):
    """One decorator, which does not say what it decorates, around both methods."""

    @staticmethod
    @without_wraps
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    @without_wraps
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class DecoratedToo(torch.autograd.Function):
    @staticmethod
    @without_wraps
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    backward = staticmethod(partial(lambda factor, ctx, grad: grad * factor, 3))


class DecoratedByTorch(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_below_a_decorator_the_methods_of_each_class_are_told_apart() -> None:
    x = torch.ones(1, requires_grad=True)
    classes: tuple[Any, ...] = (Decorated, DecoratedToo, DecoratedByTorch)
    for function in classes:
        name = function.__name__
        lines = heard(lambda function=function: function.apply(x).backward())
        assert lines == [f"> {name}.forward", f"< {name}.forward", f"> {name}Backward", f"< {name}Backward"]
    directly = heard(lambda: [function.forward(None, x.detach()) for function in classes[:2]])
    assert directly[::2] == ["> Decorated.forward", "> DecoratedToo.forward"]


class ContextIsSelf(torch.autograd.Function):
    @staticmethod
    def forward(self: Any, x: Tensor) -> Tensor:
        return x * 2


class AnyArguments(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> Tensor:
        return args[0] * 2

    @staticmethod
    def setup_context(*args: Any) -> None:
        args[0].save_for_backward()


def test_a_context_of_any_name_is_known() -> None:
    diary = Diary()
    with CallStack({}, unshielded).following(diary):
        ContextIsSelf.apply(torch.ones(1))
        AnyArguments.apply(torch.ones(1))
    assert [(list(call.arguments), call.ctx is None) for call in diary.entered_calls] == [
        (["x"], False),
        (["args"], True),
    ]


def test_a_fault_of_the_listener_in_a_call_without_a_frame_is_shielded() -> None:
    class Failing(Diary):
        def entered(self, call: RunningCall) -> None:
            raise ValueError("planted")

    faults: list[str] = []

    def shielded(function: Callable[..., Any], *args: object) -> None:
        try:
            function(*args)
        except ValueError as fault:
            faults.append(str(fault))

    stack, call = CallStack({}, shielded), RunningCall("backward", "ScaleBackward")
    with stack.following(Failing()):
        stack.push(call)
        stack.pop(call, None)
    assert faults == ["planted"]


def test_a_function_in_its_forward_is_told_from_one_in_its_backward() -> None:
    stack, seen = CallStack({}, unshielded), []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(stack.is_in_forward)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            seen.append(stack.is_in_forward)
            return grad * 2

    with stack.following(Diary()):
        assert not stack.is_in_forward
        Asking.apply(torch.ones(1, requires_grad=True)).backward()
    assert seen == [True, False]


def test_other_threads_are_left_alone_also_in_their_backward() -> None:
    def run() -> None:
        x = torch.ones(1, requires_grad=True)
        thread = threading.Thread(target=lambda: Twice.apply(x).backward())
        thread.start()
        thread.join()

    assert heard(run) == []


def test_a_further_listener_hears_first_of_a_call_that_begins_and_last_of_one_that_has_ended() -> None:
    class Marked(Diary):
        """Writes into the diary of another, with a mark."""

        def __init__(self, other: Diary) -> None:
            super().__init__()
            self.lines = other.lines

        def entered(self, call: RunningCall) -> None:
            self.lines.append(f"> {call.name}, further")

        def left(self, call: RunningCall, result: object) -> None:
            self.lines.append(f"< {call.name}, further")

    diary = Diary()
    with CallStack({}, unshielded).following(diary, Marked(diary)):
        Twice.apply(torch.ones(1))

    assert diary.lines == ["> Twice.forward, further", "> Twice.forward", "< Twice.forward", "< Twice.forward, further"]


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="a profile watches one thread")
@pytest.mark.parametrize("_how_calls_are_seen", ["monitoring"], indirect=True)
def test_threads_of_the_engine_are_followed() -> None:
    """From the 61st backward inside of another the engine goes on in a thread of its own."""

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
            ctx.depth = depth
            threads.add(threading.get_ident())
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            if ctx.depth:
                with torch.enable_grad():
                    Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).backward()
            return grad * 2, None

    threads: set[int] = set()
    # As the tracer does it.
    with torch.autograd.set_multithreading_enabled(False):
        lines = heard(lambda: Nested.apply(torch.ones(1, requires_grad=True), 70).backward())
    assert len(threads) == 2
    assert [lines.count(line) for line in ("> Nested.forward", "< NestedBackward")] == [71, 71]
