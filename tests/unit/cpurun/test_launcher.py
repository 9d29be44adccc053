from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.cpurun.conftest import Run

LAUNCH = """
import sys
from megatron_nanguard import cpurun
sys.exit(cpurun.launch(2, sys.argv[1], sys.argv[2:], modules=()).code)
"""
WAIT_FOR_EVER = """
import os, time
child = os.fork()  # as a data loader's worker
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""


def test_lines_carry_their_rank(run: Run) -> None:
    finished = run(3, 'print("one", rank)\nprint("two", file=sys.stderr)\nsys.stdout.write("no newline")')

    assert finished.code == 0
    assert finished.codes == {0: 0, 1: 0, 2: 0}
    assert finished.lines(1) == ["one 1", "two", "no newline"]
    own = [line for line in finished.out.splitlines() if not line.startswith("[rank")]
    assert [re.sub(r"[\d.]+ s", "N s", line) for line in own] == ["[cpu-run] import N s, ranks N s"]


def test_ranks_see_what_torchrun_would_set(run: Run, tmp_path: Path) -> None:
    finished = run(
        2,
        'print(sys.argv[1:], sys.path[0], __name__, *(os.environ[n] for n in ("LOCAL_RANK", "WORLD_SIZE", "EXTRA")))',
        "--nanguard",
        "--",
        "-x",
        env={"EXTRA": "more"},
    )

    assert finished.lines(1) == [f"['--nanguard', '--', '-x'] {tmp_path} __main__ 1 2 more"]


def test_ranks_meet_on_gloo(run: Run) -> None:
    finished = run(
        2,
        """
import torch.distributed as dist
dist.init_process_group("nccl")
x = __import__("torch").tensor([rank + 1.0], device="cuda")
dist.all_reduce(x)
print(dist.get_backend(), x.item())
""",
    )

    assert finished.lines(0) == finished.lines(1) == ["gloo 3.0"], finished.out


def test_an_exception_brings_the_others_down_and_is_shown_last(run: Run) -> None:
    finished = run(3, 'if rank == 1:\n    raise ValueError("broken")\ntime.sleep(60)')

    assert finished.code == 1
    assert finished.codes == {1: 1}
    assert finished.seconds < 10
    last = finished.out[finished.out.index("[cpu-run]") :].splitlines()
    assert last[0] == ("[cpu-run] rank 1 failed first (exit code 1), the others were brought down; its last lines:")
    assert last[-1] == "[rank1] ValueError: broken"


@pytest.mark.parametrize(
    ("leaving", "code", "words"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("sys.exit('no data')", 1, "exit code 1"),
        ("os._exit(17)", 17, "exit code 17"),
        ("os.kill(os.getpid(), 9)", 137, "signal SIGKILL"),
        ("os.kill(os.getpid(), 11)", 139, "signal SIGSEGV"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(run: Run, leaving: str, code: int, words: str) -> None:
    finished = run(2, f"if rank == 1:\n    {leaving}\ntime.sleep(60)")

    assert finished.code == code
    assert f"[cpu-run] rank 1 failed first ({words}), the others were brought down" in finished.out


def test_the_rank_that_fails_first_is_named_not_the_one_that_ends_first(run: Run) -> None:
    # Rank 2 fails first, but its exit takes longer than that of the others, which wait for its failure.
    text = """
if rank == 2:
    import atexit
    atexit.register(time.sleep, 0.8)
    open("failing", "w").close()
    sys.exit(9)
while not os.path.exists("failing"):
    time.sleep(0.02)
time.sleep(0.3)
sys.exit(4)
"""
    finished = run(3, text, linger=1.0)

    assert finished.code == 9
    assert "rank 2 failed first (exit code 9)" in finished.out


def test_exit_handlers_run(run: Run) -> None:
    finished = run(1, 'import atexit\natexit.register(print, "handled")\nsys.exit(5)')

    assert finished.code == 5
    assert finished.lines(0)[0] == "handled"


def test_all_leaving_by_policy_is_one_line(run: Run) -> None:
    finished = run(3, 'time.sleep(0.7 * rank)\nprint("leaving")\nos._exit(65)')

    assert finished.code == 65
    assert finished.codes == {0: 65, 1: 65, 2: 65}
    assert finished.out.splitlines()[-1] == "[cpu-run] all 3 ranks left with exit code 65"


def test_lingering_lets_the_others_end_by_themselves(run: Run) -> None:
    text = "if rank == 1:\n    os.kill(os.getpid(), 9)\ntime.sleep(2)\nos._exit(65)"

    finished = run(2, text, linger=5.0)

    assert finished.code == 137
    assert finished.codes == {0: 65, 1: 137}


def test_timeout_prints_all_stacks(run: Run) -> None:
    finished = run(2, "def stuck():\n    time.sleep(60)\nstuck()", timeout=0.5)

    assert finished.code == 124
    assert "[cpu-run] no end after 0.5 s: the stacks of all ranks follow" in finished.out
    for rank in (0, 1):
        assert any("in stuck" in line for line in finished.lines(rank))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_stopped_launcher_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAIT_FOR_EVER, encoding="utf-8")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, script], stdout=subprocess.PIPE, text=True, env={**os.environ, "NANGUARD": "0"}
    )
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(4)]  # two ranks, one child each

    launcher.send_signal(number)

    assert launcher.wait(20) == 128 + number
    launcher.stdout.close()
    assert [pid for pid in pids if not is_gone(pid)] == []


def test_a_killed_launcher_takes_the_ranks_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAIT_FOR_EVER.replace("child = os.fork()", "pass"), encoding="utf-8")
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH, script], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]

    launcher.kill()

    launcher.communicate()
    assert [pid for pid in pids if not is_gone(pid)] == []


def is_gone(pid: int) -> bool:
    """Whether a process ends within a second; one that waits for its parent to take note counts as ended."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_threads_before_the_fork_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("", encoding="utf-8")
    threaded = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"

    done = subprocess.run(
        [sys.executable, "-c", threaded + LAUNCH, script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "LaunchRefused: 2 threads after the import, 1 expected before ranks are forked" in done.stderr
