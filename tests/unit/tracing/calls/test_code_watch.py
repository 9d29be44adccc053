"""Code objects are watched by `sys.monitoring`, else by `sys.setprofile`; nothing of it is left afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from megatron_nanguard.tracing.calls.code_watch import CodeWatch

needs_monitoring = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="this Python has no sys.monitoring")


def watched(number: int) -> int:
    """What is watched."""
    if number < 0:
        raise ValueError("planted")
    return number * 2


def not_watched(number: int) -> int:
    return watched(number) + 1


def watch() -> tuple[CodeWatch, list[str]]:
    """A watch of one function, and what it reports."""
    seen: list[str] = []

    def started(frame: FrameType) -> None:
        seen.append(f"started with {frame.f_locals['number']}")

    def returned(frame: FrameType, result: object) -> None:
        seen.append(f"returned {result}")

    def raised(frame: FrameType) -> None:
        seen.append(f"raised in {frame.f_code.co_name}")

    one = CodeWatch(started, returned, raised)
    one.add(watched.__code__)
    return one, seen


@pytest.fixture
def no_free_place() -> Iterator[None]:
    """Other tools have taken all places of `sys.monitoring`."""
    taken = [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "another tool")
    yield
    for tool in taken:
        sys.monitoring.free_tool_id(tool)


def tools() -> list[str | None]:
    return [sys.monitoring.get_tool(tool) for tool in range(6)]


@pytest.mark.parametrize("takes_place", [True, False])
def test_calls_of_watched_code_are_reported(takes_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not takes_place:
        monkeypatch.setattr("megatron_nanguard.tracing.calls.code_watch._take_tool", lambda: None)
    one, seen = watch()
    watched(1)
    with one.watching():
        assert not_watched(2) == 5
    watched(3)
    assert seen == ["started with 2", "returned 4"]


@needs_monitoring
def test_a_call_that_raises_is_reported_as_such() -> None:
    one, seen = watch()
    with one.watching(), pytest.raises(ValueError, match="planted"):
        not_watched(-1)
    assert seen == ["started with -1", "raised in watched"]


def test_code_may_be_added_while_it_is_watched() -> None:
    one, seen = watch()
    with one.watching():
        one.add(not_watched.__code__)
        not_watched(1)
    assert seen == ["started with 1", "started with 1", "returned 2", "returned 3"]


@needs_monitoring
def test_the_place_is_free_afterwards_also_after_an_exception() -> None:
    one, seen = watch()
    before = tools()
    with pytest.raises(ValueError, match="planted"), one.watching():
        assert tools() != before
        watched(-1)
    assert tools() == before
    watched(1)
    assert len(seen) == 2
    with one.watching():
        watched(1)
    assert len(seen) == 4


@needs_monitoring
@pytest.mark.usefixtures("no_free_place")
def test_without_a_free_place_the_profile_is_used_and_another_profiler_put_back() -> None:
    one, seen = watch()
    before, calls = sys.getprofile(), []

    def profiler(frame: FrameType, event: str, argument: object) -> None:
        calls.append(frame.f_code.co_name)

    sys.setprofile(profiler)
    try:
        with one.watching():
            watched(1)
        watched(2)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert seen == ["started with 1", "returned 2"]
    assert calls.count("watched") == 2


@needs_monitoring
@pytest.mark.parametrize("answer", [None, "disable"])
def test_another_tool_that_watches_the_same_code_does_not_matter(answer: str | None) -> None:
    monitoring = sys.monitoring
    tool = next(tool for tool in range(6) if monitoring.get_tool(tool) is None)
    others: list[str] = []

    def callback(code: Any, offset: int, *result: object) -> Any:
        if code is watched.__code__:
            others.append(code.co_name)
        return monitoring.DISABLE if answer else None

    monitoring.use_tool_id(tool, "another tool")
    for event in (monitoring.events.PY_START, monitoring.events.PY_RETURN):
        monitoring.register_callback(tool, event, callback)
    monitoring.set_events(tool, monitoring.events.PY_START | monitoring.events.PY_RETURN)
    try:
        one, seen = watch()
        with one.watching():
            watched(1)
            watched(1)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert seen == ["started with 1", "returned 2"] * 2
    assert len(others) == (2 if answer else 4)


@needs_monitoring
@pytest.mark.parametrize("tool", range(6))
def test_events_that_a_former_tool_has_disabled_are_reported(tool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monitoring = sys.monitoring
    if monitoring.get_tool(tool) is not None:
        pytest.skip("the place is taken")
    disable: Callable[..., Any] = lambda code, offset: monitoring.DISABLE  # noqa: E731
    monitoring.use_tool_id(tool, "a former tool")
    monitoring.register_callback(tool, monitoring.events.PY_START, disable)
    monitoring.set_local_events(tool, watched.__code__, monitoring.events.PY_START)
    watched(1)
    monitoring.set_local_events(tool, watched.__code__, 0)
    monitoring.register_callback(tool, monitoring.events.PY_START, None)
    monitoring.free_tool_id(tool)
    monkeypatch.setattr("megatron_nanguard.tracing.calls.code_watch._TOOL_IDS", (tool,))
    one, seen = watch()
    with one.watching():
        watched(1)
    assert seen == ["started with 1", "returned 2"]


@pytest.mark.parametrize("has_place", [True, False])
def test_equal_code_of_two_functions_is_watched_twice(has_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is loaded twice has two code objects that compare equal."""
    if not has_place:
        monkeypatch.setattr("megatron_nanguard.tracing.calls.code_watch._take_tool", lambda: None)
    seen: list[str] = []
    one = CodeWatch(lambda frame: seen.append("started"), lambda frame, result: None, lambda frame: None)
    functions: list[Any] = []
    for _ in range(2):
        scope: dict[str, Any] = {}
        exec("def twice(number):\n    return number * 2", scope)
        functions.append(scope["twice"])
        one.add(scope["twice"].__code__)
    assert functions[0].__code__ == functions[1].__code__
    with one.watching():
        assert [function(2) for function in functions] == [4, 4]
    assert seen == ["started"] * 2
