"""A watchdog ends the rank, here a recorder in its place."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from megatron_nanguard.coordination.watchdog import EXIT_CODE, FAILED, REPORT_SECONDS, Watchdog
from tests.unit.conftest import Log
from tests.unit.coordination.conftest import Clients
from tests.unit.coordination.ranks import together


class Leaving:
    """Where ``leave_now`` would stand."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.left = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.left.set()


def watchdog(store: Any, leave: Leaving, rank: int = 5, world_size: int = 8) -> Watchdog:
    """With a deadline of 0 seconds, and healthy steps of half a second."""
    return Watchdog(store, rank, world_size, 0.0, 0.5, leave=leave)


def test_an_incident_in_time_leaves_nothing_behind(store: Clients) -> None:
    leave, mine = Leaving(), store(5)
    with watchdog(mine, leave) as dog:
        dog.stage("signal", seconds=20.0)
        dog.stage("files", seconds=20.0)
        time.sleep(0.5)
    assert leave.codes == []
    assert not mine.check([FAILED])
    time.sleep(0.5)
    ours = ("nanguard-watchdog", "nanguard-reports")
    assert [thread.name for thread in threading.enumerate() if thread.name in ours] == []


def test_past_the_deadline_of_its_stage_the_rank_leaves_and_reports_to_the_others(store: Clients, log: Log) -> None:
    leave, mine = Leaving(), store(5)
    with watchdog(mine, leave) as dog:
        dog.stage("exchange", seconds=0.3)
        assert leave.left.wait(10)
    assert leave.codes == [EXIT_CODE]
    assert mine.get(FAILED) == b"rank 5 waited too long in stage exchange"
    assert log.messages == [
        "rank 5 leaves an incident in stage 'exchange': the deadline has passed (--nanguard-deadline)"
    ]


def test_a_new_stage_has_time_of_its_own(store: Clients) -> None:
    leave = Leaving()
    with watchdog(store(5), leave) as dog:
        dog.stage("signal", seconds=0.5)
        dog.stage("exchange", seconds=20.0)
        time.sleep(1.0)
    assert leave.codes == []


def test_a_stage_that_runs_the_step_again_may_take_longer_by_healthy_steps(store: Clients) -> None:
    leave = Leaving()
    with watchdog(store(5), leave) as dog:
        dog.stage("plain replay", healthy_steps=40)
        time.sleep(1.0)
        assert leave.codes == []
        dog.stage("plain replay", healthy_steps=1)
        assert leave.left.wait(10)
    assert leave.codes == [EXIT_CODE]


def test_when_another_rank_has_failed_the_rank_leaves_long_before_its_deadline(store: Clients, log: Log) -> None:
    leave = Leaving()
    with watchdog(store(5), leave) as dog:
        dog.stage("exchange", seconds=600.0)
        store(3).set(FAILED, "rank 3, stage exchange: out of memory")
        assert leave.left.wait(10)
    assert leave.codes == [EXIT_CODE]
    assert log.messages == [
        "rank 5 leaves an incident in stage 'exchange': reported by rank 3, stage exchange: out of memory"
    ]


def test_a_body_that_fails_reports_to_the_others_and_leaves(store: Clients, log: Log) -> None:
    leave, mine = Leaving(), store(5)
    with pytest.raises(ValueError, match="row"), watchdog(mine, leave) as dog:
        dog.stage("exchange", seconds=600.0)
        raise ValueError("a row is too short")
    # The recorder comes back where the process would have ended.
    assert leave.codes == [EXIT_CODE]
    assert mine.get(FAILED) == b"rank 5, stage exchange: a row is too short"
    assert log.messages == ["the incident failed on rank 5 in stage 'exchange': a row is too short"]


def test_all_ranks_of_an_incident_wait_for_the_last_one(store: Clients) -> None:
    dogs = {rank: watchdog(store(rank), Leaving(), rank, world_size=3) for rank in range(3)}
    began = time.monotonic()

    def arrive(rank: int) -> float:
        dogs[rank].wait_for_all("capture 1")
        return time.monotonic() - began

    seconds = together({rank: lambda rank=rank: arrive(rank) for rank in dogs}, {2: 1.0})
    assert min(seconds.values()) >= 1.0
    assert max(seconds.values()) < 10.0
    dogs[0] = watchdog(store(0), Leaving(), 0, world_size=1)
    assert arrive(0) < 20.0


def test_a_rank_that_waits_for_one_that_is_gone_leaves_by_its_deadline(store: Clients) -> None:
    leave = Leaving()
    with watchdog(store(0), leave, 0, world_size=2) as dog:
        dog.stage("capture", seconds=0.5)
        threading.Thread(target=dog.wait_for_all, args=("capture 2",), daemon=True).start()
        assert leave.left.wait(10)
    assert leave.codes == [EXIT_CODE]
    store(1).add("capture 2", 1)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (SystemExit(0), "SystemExit (0)"),
        (SystemExit(3), "SystemExit (3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt ()"),
    ],
)
def test_a_script_that_ends_its_process_inside_an_incident_never_leaves_with_code_0_and_tells_the_others(
    store: Clients, log: Log, ending: BaseException, words: str
) -> None:
    leave, mine = Leaving(), store(5)
    with pytest.raises(type(ending)), watchdog(mine, leave) as dog:
        dog.summary = "Step 3: gradients of rank 5 were not finite."
        dog.stage("plain replay", seconds=600.0)
        raise ending
    assert leave.codes == [EXIT_CODE]
    assert mine.get(FAILED).decode() == f"rank 5, stage plain replay: {words}"
    assert log.messages == [
        "non-finite gradient or loss. Step 3: gradients of rank 5 were not finite. This incident was not completed.",
        f"the incident failed on rank 5 in stage 'plain replay': {words}",
    ]


@pytest.mark.parametrize("speaks", [True, False])
def test_what_is_known_is_logged_by_the_rank_that_speaks_when_another_one_failed(
    store: Clients, log: Log, speaks: bool
) -> None:
    leave = Leaving()
    dog = Watchdog(store(5), 5, 8, 0.0, 0.5, speaks, leave)
    with dog:
        dog.summary = "Step 3: gradients of rank 5 were not finite."
        dog.stage("exchange", seconds=600.0)
        store(3).set(FAILED, "rank 3, stage exchange: out of memory")
        assert leave.left.wait(10)
    sentences = [message for message in log.messages if message.startswith("non-finite gradient or loss. Step 3: ")]
    assert len(sentences) == int(speaks)


class HungStore:
    """A store whose server is frozen: every call waits for an answer."""

    def __init__(self) -> None:
        self.is_over = threading.Event()

    def check(self, keys: list[str]) -> bool:
        return not self.is_over.wait(50)

    def set(self, key: str, value: str) -> None:
        self.is_over.wait(50)


def test_a_store_that_hangs_delays_the_end_by_a_moment() -> None:
    leave, hung = Leaving(), HungStore()
    began = time.monotonic()
    with watchdog(hung, leave) as dog:
        dog.stage("exchange", seconds=0.5)
        assert leave.left.wait(20)
    assert time.monotonic() - began < 0.5 + REPORT_SECONDS + 10.0
    assert leave.codes == [EXIT_CODE]
    hung.is_over.set()


def test_a_body_that_fails_leaves_although_the_store_hangs() -> None:
    leave, hung = Leaving(), HungStore()
    began = time.monotonic()
    with pytest.raises(ValueError, match="row"), watchdog(hung, leave):
        raise ValueError("a row is too short")
    assert time.monotonic() - began < REPORT_SECONDS + 10.0
    assert leave.codes == [EXIT_CODE]
    hung.is_over.set()


class GoneStore:
    """A store whose server has ended, as torch reports it."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Broken pipe")

    set = check


def test_without_the_store_the_rank_leaves_too(log: Log) -> None:
    leave = Leaving()
    with watchdog(GoneStore(), leave) as dog:
        dog.stage("exchange", seconds=600.0)
        assert leave.left.wait(10)
    assert leave.codes == [EXIT_CODE]
    assert log.messages == ["rank 5 leaves an incident in stage 'exchange': the rendezvous store is gone (Broken pipe)"]


def test_the_real_one_ends_a_process_that_hangs_with_65_and_shows_where() -> None:
    code = """
import time
import torch.distributed as dist
from megatron_nanguard.coordination.watchdog import Watchdog
def stuck_here():
    time.sleep(60)
with Watchdog(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), 0, 1, 0.1, 0.0) as dog:
    dog.stage("exchange")
    stuck_here()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == EXIT_CODE
    assert "stuck_here" in done.stderr
