from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.cpurun.errors import LaunchRefused
from tests.import_server import Finished, Job, Server
from tests.unit.cpurun.conftest import Run

OURS = """
ours = sorted(name for name in sys.modules if name.startswith("megatron_nanguard"))
print(*(name for name in ours if not name.startswith("megatron_nanguard.cpurun")))
"""


def test_a_job_survives_its_text_form() -> None:
    job = Job(2, "script.py", ["--x", "a b"], "out", "codes", "/", env={"A": "1"}, timeout=3.5, in_rank="os:getpid")

    assert "\n" not in job.to_line()
    assert Job.from_line(job.to_line()) == job


def test_lines_of_one_rank() -> None:
    finished = Finished(0, {}, "[rank1] a\n[rank11] b\n[cpu-run] c\n[rank1] \n[rank1] [rank2] d\n", 0.0)

    assert finished.lines(1) == ["a", "", "[rank2] d"]
    assert finished.lines(11) == ["b"]


def test_a_job_has_imported_only_cpurun_of_this_package(run: Run) -> None:
    finished = run(1, OURS)

    assert finished.lines(0) == ["megatron_nanguard megatron_nanguard.version"]


def test_in_rank_is_called_in_each_rank_before_the_script(run: Run) -> None:
    finished = run(2, 'print("script", file=sys.stderr)', in_rank="faulthandler:dump_traceback")

    for rank in (0, 1):
        lines = finished.lines(rank)
        assert lines[0].startswith(("Stack", "Current thread"))
        assert lines[-1] == "script"


def test_in_rank_that_fails_is_a_rank_that_fails(run: Run) -> None:
    finished = run(1, 'print("script")', in_rank="json:absent")

    assert finished.code == 1
    assert finished.lines(0)[-1] == "AttributeError: module 'json' has no attribute 'absent'"
    assert "script" not in finished.lines(0)


def test_in_rank_may_switch_the_guard_on(run: Run) -> None:
    finished = run(1, 'print("megatron_nanguard.guard.hooks" in sys.modules)', in_rank="megatron_nanguard:enable")

    assert finished.lines(0) == ["True"], finished.out


def test_jobs_do_not_inherit_the_switch_of_the_server(run: Run) -> None:
    text = 'print(os.environ.get("NANGUARD"))'

    assert run(1, text).lines(0) == ["None"]
    assert run(1, text, env={"NANGUARD": "1"}).lines(0) == ["1"]


def test_one_job_leaves_nothing_for_the_next(run: Run) -> None:
    run(1, "os.environ['LEFT'] = '1'; sys.modules['left'] = sys")

    assert run(1, "print('LEFT' in os.environ, 'left' in sys.modules)").lines(0) == ["False False"]


def test_a_server_that_cannot_import_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('as expected')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(LaunchRefused, match="ended with code 1"):
        Server.start(modules=("broken",))
