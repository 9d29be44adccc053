"""Work that hangs is waited for up to a limit, and what comes after it is not begun before it has ended."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import pytest

from megatron_nanguard.time_limit import SideThread, TookTooLong, do_beside


def test_work_in_time_gives_its_result_or_its_error() -> None:
    side = SideThread("side")
    assert side.do(lambda: threading.current_thread().name, 10.0) == "side"
    with pytest.raises(OSError, match="disk full"):
        side.do(lambda: _raise(OSError("disk full")), 10.0)
    assert side.do(lambda: 3, 10.0) == 3


def test_while_late_work_is_running_nothing_else_is_begun() -> None:
    side, gate, begun = SideThread("side"), threading.Event(), []
    with pytest.raises(TookTooLong):
        side.do(lambda: gate.wait(30), 0.1)
    with pytest.raises(TookTooLong):
        side.do(lambda: begun.append(1), 0.1)
    gate.set()
    assert side.do(lambda: 3, 10.0) == 3
    assert begun == []


def test_one_thread_serves_all_work() -> None:
    side = SideThread("side")
    assert len({side.do(threading.get_ident, 10.0) for _ in range(5)}) == 1


def test_the_thread_ends_with_its_owner() -> None:
    side = SideThread("side of one test")
    side.do(lambda: 1, 10.0)
    thread = next(each for each in threading.enumerate() if each.name == "side of one test")
    del side
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_gets_a_thread_of_its_own() -> None:
    side = SideThread("side")
    side.do(lambda: 1, 10.0)
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()
    child = context.Process(target=_answer, args=(side, its))
    child.start()
    assert mine.poll(20)
    assert mine.recv() == 3
    child.join(20)


def _answer(side: SideThread, to: Connection) -> None:
    to.send(side.do(lambda: 3, 10.0))


def test_calls_beside_are_waited_for_together_and_what_they_raise_is_lost() -> None:
    gate, done = threading.Event(), []
    began = time.monotonic()
    do_beside(0.5, lambda: gate.wait(30), lambda: gate.wait(30), lambda: _raise(SystemExit(3)), lambda: done.append(1))
    assert 0.5 <= time.monotonic() - began < 5.0
    assert done == [1]
    gate.set()
    began = time.monotonic()
    do_beside(20.0, lambda: done.append(2))
    assert time.monotonic() - began < 5.0
    assert done == [1, 2]


def _raise(error: BaseException) -> None:
    raise error


def test_an_ended_thread_is_gone_and_comes_back_with_the_next_work() -> None:
    side = SideThread("ends")
    side.end()
    side.do(lambda: 1, 10.0)
    side.end()
    assert "ends" not in {thread.name for thread in threading.enumerate()}
    assert side.do(lambda: 3, 10.0) == 3


def test_work_that_hangs_is_not_waited_for_at_the_end() -> None:
    side, gate = SideThread("hangs"), threading.Event()
    with pytest.raises(TookTooLong):
        side.do(lambda: gate.wait(30), 0.1)
    began = time.monotonic()
    side.end()
    assert time.monotonic() - began < 5.0
    gate.set()
