"""The deadline of an incident is kept whatever hangs: the store, the log, the pipes that the process writes to."""

from __future__ import annotations

import pytest

from tests.chaos.processes import Ended, run_program

WITHIN_SECONDS = 6.0
"""From the deadline to the end of the process, on a loaded machine."""
DEADLINE_SECONDS = 2.0

START = """
import fcntl, os, signal, sys, threading, time
print(time.time(), flush=True)
import torch.distributed as dist
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guard.hooks import _log_to_stderr
_log_to_stderr()
began = time.time()
def fill(descriptor):
    "Put a pipe in the place of a descriptor that nobody reads and that is full."
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"x" * size)
        except BlockingIOError:
            pass
    fcntl.fcntl(writer, fcntl.F_SETFL, 0)
    os.dup2(writer, descriptor)
"""

FROZEN_STORE = (
    START
    + """
reader, writer = os.pipe()
host = os.fork()
if host == 0:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writer, str(served.port).encode())
    time.sleep(120)
    os._exit(0)
client = dist.TCPStore("127.0.0.1", int(os.read(reader, 20)), is_master=False)
threading.Timer(40, os.kill, (host, signal.SIGKILL)).start()
with Watchdog(client, 0, 2, 0.0, 0.0) as dog:
    dog.stage("plain replay", seconds=float(sys.argv[2]))
    time.sleep(0.5)
    if sys.argv[1] != "served":
        os.kill(host, signal.SIGSTOP if sys.argv[1] == "stop" else signal.SIGKILL)
    if sys.argv[3] == "raise":
        raise ValueError("planted by the test")
    time.sleep(3.0 if sys.argv[1] == "served" else 60)
os.kill(host, signal.SIGKILL)
print("the incident is over", flush=True)
os._exit(0)
"""
)

FULL_PIPE = (
    START
    + """
store = dist.HashStore()
if sys.argv[1] == "stderr":
    fill(2)
if sys.argv[1] == "stdout":
    sys.stdout.write("a line that is not at its end")
    fill(1)
with Watchdog(store, 0, 1, 0.0, 0.0) as dog:
    dog.summary = "Step 3: gradients of rank 0 were not finite."
    dog.stage("exchange", seconds=2.0)
    if sys.argv[2] == "raise":
        raise ValueError("planted by the test")
    if sys.argv[2] == "exit":
        sys.exit(0)
    time.sleep(60)
"""
)


def assert_left(ended: Ended, after: float) -> None:
    assert ended.code == 65, f"{'hung' if ended.code is None else ended.code}: {ended.err[-2000:]}"
    # Importing torch takes a few seconds of it.
    assert ended.seconds < after + WITHIN_SECONDS + 10.0


@pytest.mark.parametrize("what", ["stop", "kill"])
def test_a_store_host_that_is_frozen_or_gone_does_not_stop_the_clock(what: str) -> None:
    ended = run_program(FROZEN_STORE, what, str(DEADLINE_SECONDS), "wait")
    assert_left(ended, DEADLINE_SECONDS)
    assert "leaves an incident in stage 'plain replay'" in ended.err


def test_an_error_leaves_within_seconds_although_the_store_host_is_frozen() -> None:
    ended = run_program(FROZEN_STORE, "stop", "600", "raise")
    assert_left(ended, 0.5)
    assert "the incident failed on rank 0 in stage 'plain replay': planted by the test" in ended.err


def test_twin_with_a_store_that_answers_the_incident_comes_to_its_end() -> None:
    ended = run_program(FROZEN_STORE, "served", "20", "wait")
    assert (ended.code, ended.out.splitlines()[1:], ended.err) == (0, ["the incident is over"], "")


@pytest.mark.parametrize("pipe", ["stderr", "stdout"])
@pytest.mark.parametrize("how", ["wait", "raise", "exit"])
def test_a_full_pipe_does_not_stop_the_clock(pipe: str, how: str) -> None:
    assert_left(run_program(FULL_PIPE, pipe, how), DEADLINE_SECONDS)


def test_twin_with_pipes_that_are_read_the_reason_is_printed() -> None:
    ended = run_program(FULL_PIPE, "none", "wait")
    assert_left(ended, DEADLINE_SECONDS)
    assert "rank 0 leaves an incident in stage 'exchange': the deadline has passed" in ended.err
    assert "Step 3: gradients of rank 0 were not finite. This incident was not completed." in ended.err
