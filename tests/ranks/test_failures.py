"""Faults of the guard itself or of a rank: training goes on, and no rank waits longer than the deadline.

`misbehave.py` trains on four ranks, rank = tp + 2 * dp, of which rank 3 misbehaves by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Finished, Server
from tests.ranks.layouts import COMMON, Layout
from tests.ranks.run_files import RunFiles
from tests.ranks.training_log import Step, steps_of

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("misbehave.py")
SMALL = Layout(
    4,
    (
        *(*COMMON, "--bf16", "--num-layers", "2", "--global-batch-size", "8"),
        *("--tensor-model-parallel-size", "2"),
    ),
    tp=2,
)
DRILL = ("--nanguard-drill", "nan@step=2,rank=1,phase=backward,module=decoder.layers.1.mlp")
"""Bad before the reduction on ranks 0 and 1, which share the backward pass; ranks 2 and 3 by reduction."""
EVERYWHERE = {"AT_FAULT": "0 1 2 3"}
ON, OFF = "bucket check [True]", "bucket check [False]"
GAVE_UP = "a fault of nanguard's own on some rank: it is off on all ranks, Megatron's own NaN checks are back on"
DEADLINE_SECONDS = 3


@pytest.fixture(scope="module")
def stock(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """The same training without the guard."""
    return steps_of(ranks.run(4, pretrain_script(), SMALL.args, cwd=tmp_path_factory.mktemp("stock")))


def run(
    ranks: Server,
    folder: Path,
    misbehaviour: str,
    *more: str,
    env: Mapping[str, str] | None = None,
    flag: tuple[str, ...] = ("--nanguard",),
    linger: float = 1.0,
) -> Finished:
    """Train with one misbehaviour, in a folder of its own."""
    args = SMALL.plus(*flag, *more).args
    return ranks.run(4, SCRIPT, args, env={"MISBEHAVIOUR": misbehaviour, **(env or {})}, cwd=folder, linger=linger)


def log_lines(finished: Finished) -> list[tuple[int, str]]:
    """(rank, line) of what the guard logged."""
    return [
        (rank, line.removeprefix("[nanguard] "))
        for rank in range(4)
        for line in finished.lines(rank)
        if line.startswith("[nanguard] ")
    ]


def bucket_checks(finished: Finished) -> list[str]:
    """Whether Megatron's own check was on at the end, by rank."""
    return [line for rank in range(4) for line in finished.lines(rank) if line.startswith("bucket check")]


def files_of(folder: Path) -> RunFiles:
    return RunFiles.only_one_of(folder / "nanguard")


# The start ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misbehaviour", "reason"),
    [
        ("without_flag", "rank 3 started without --nanguard"),
        ("other_options", "rank 3 got other options"),
        ("missing_target", "rank 3 came without patch groups decision"),
    ],
)
def test_one_rank_that_differs_makes_all_run_unguarded_at_once(
    ranks: Server, tmp_path: Path, stock: list[Step], misbehaviour: str, reason: str
) -> None:
    finished = run(ranks, tmp_path, misbehaviour)

    assert steps_of(finished) == stock
    assert log_lines(finished) == [(0, f"all ranks run unguarded: {reason}")]
    assert bucket_checks(finished) == 4 * [ON]
    assert finished.seconds < 60, "no rank waits for the deadline of 120 s"


def test_another_rank_reports_when_rank_0_is_the_one_that_differs(
    ranks: Server, tmp_path: Path, stock: list[Step]
) -> None:
    finished = run(ranks, tmp_path, "without_flag", env={"AT_FAULT": "0"})

    assert steps_of(finished) == stock
    assert log_lines(finished) == [(1, "all ranks run unguarded: rank 0 started without --nanguard")]


def test_a_rank_without_the_plugin_is_waited_for_until_the_deadline(
    ranks: Server, tmp_path: Path, stock: list[Step]
) -> None:
    env = {"NANGUARD": "1", "NANGUARD_DEADLINE": str(DEADLINE_SECONDS)}

    finished = run(ranks, tmp_path, "without_plugin", env=env, flag=())

    assert steps_of(finished) == stock
    assert log_lines(finished) == [(0, "all ranks run unguarded: rank 3 did not answer")]
    assert bucket_checks(finished) == 4 * [ON]
    assert finished.seconds > DEADLINE_SECONDS


def test_strict_refuses_to_train_unguarded(ranks: Server, tmp_path: Path) -> None:
    finished = run(ranks, tmp_path, "without_flag", "--nanguard-strict", linger=10)

    assert [finished.codes[rank] for rank in (0, 1, 2)] == [1, 1, 1]
    reason = "nanguard: --nanguard-strict: all ranks run unguarded: rank 3 started without --nanguard"
    assert [rank for rank in range(4) if reason in finished.lines(rank)] == [0]
    assert " lm loss: " not in finished.out


def test_a_missing_target_is_logged_once_with_its_consequence(ranks: Server, tmp_path: Path, stock: list[Step]) -> None:
    finished = run(ranks, tmp_path, "missing_target", env=EVERYWHERE)

    assert steps_of(finished) == stock
    (at,) = log_lines(finished)
    assert at[0] == 0
    assert at[1].startswith("all ranks run unguarded: ")
    assert "optimizer:FP32Optimizer.prepare_grads is not in this Megatron" in at[1]
    assert bucket_checks(finished) == 4 * [ON]


def test_an_unknown_release_is_logged_once_and_guarded_as_far_as_it_matches(
    ranks: Server, tmp_path: Path, stock: list[Step]
) -> None:
    finished = run(ranks, tmp_path, "unknown_release", env=EVERYWHERE)

    assert steps_of(finished) == stock
    warnings = [(rank, line) for rank, line in log_lines(finished) if "0.25.0" in line]
    assert [(rank, line[:54]) for rank, line in warnings] == [
        (0, "Megatron core 0.25.0 is outside of 0.8 to 0.19, which ")
    ]
    assert [status["steps_guarded"] for status in files_of(tmp_path).statuses()] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("misbehaviour", "reason"),
    [
        ("missing_target", "FP32Optimizer.prepare_grads is not in"),
        ("unknown_release", "Megatron core 0.25.0 is outside"),
    ],
)
def test_strict_makes_an_unfamiliar_megatron_fatal(
    ranks: Server, tmp_path: Path, misbehaviour: str, reason: str
) -> None:
    finished = run(ranks, tmp_path, misbehaviour, "--nanguard-strict", env=EVERYWHERE, linger=10)

    assert finished.codes == {0: 1, 1: 1, 2: 1, 3: 1}
    saying = [(rank, line) for rank in range(4) for line in finished.lines(rank) if reason in line]
    assert [(rank, line.startswith("nanguard: --nanguard-strict: ")) for rank, line in saying] == [(0, True)]
    assert " lm loss: " not in finished.out


# A fault of ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misbehaviour", "where", "last_guarded_step"),
    [
        ("raise_before_the_reduction", "before the reduction", 2),
        ("raise_when_the_step_opens", "step", 2),
        ("raise_in_the_flags", "flags", 2),
        ("raise_in_names", "names", 1),
        ("raise_at_the_start", "start", 1),
    ],
)
def test_a_fault_on_one_rank_switches_the_guard_off_on_all_together(
    ranks: Server, tmp_path: Path, stock: list[Step], misbehaviour: str, where: str, last_guarded_step: int
) -> None:
    finished = run(ranks, tmp_path, misbehaviour)

    assert steps_of(finished) == stock
    fault = f"a fault of nanguard's own in {where}; training goes on without it"
    assert [rank for rank, line in log_lines(finished) if line == fault] == [3]
    assert [rank for rank, line in log_lines(finished) if line == GAVE_UP] == [0]
    assert [rank for rank in range(4) if "LookupError: planted by the test" in finished.lines(rank)] == [3]
    assert finished.out.count("LookupError: planted by the test") == 1
    assert bucket_checks(finished) == 4 * [ON]
    guarded = {status["rank"]: status["steps_guarded"] for status in files_of(tmp_path).statuses()}
    writing = {0, 1, 2, 3} - ({3} if misbehaviour == "raise_at_the_start" else set())
    assert guarded == dict.fromkeys(writing, last_guarded_step)


def test_without_a_fault_the_same_script_is_guarded_to_the_end(
    ranks: Server, tmp_path: Path, stock: list[Step]
) -> None:
    finished = run(ranks, tmp_path, "nothing")

    assert steps_of(finished) == stock
    assert bucket_checks(finished) == 4 * [OFF]
    assert [status["steps_guarded"] for status in files_of(tmp_path).statuses()] == [3, 3, 3, 3]


def test_evidence_that_cannot_be_collected_leaves_the_incident_to_the_others(ranks: Server, tmp_path: Path) -> None:
    finished = run(ranks, tmp_path, "raise_in_the_signal", *DRILL)

    assert finished.codes == {0: 65, 1: 65, 2: 65, 3: 65}
    assert [name[:9] for name in files_of(tmp_path).postmortems(2)] == ["rank00000", "rank00001", "rank00002"]
    merged = files_of(tmp_path).merged(2)
    assert merged["ranks"]["bad_before"] == [0, 1]
    assert [note for note in merged["notes"] if "the guard itself failed on rank 3;" in note]


@pytest.mark.parametrize(
    ("misbehaviour", "bad_step", "applied", "gives_up"),
    [
        # A fault inside the incident costs the evidence of that rank, and not the protection.
        ("raise_in_the_signal", 2, [1, 3], False),
        ("raise_before_the_reduction", 2, [1, 3], True),
        ("raise_at_the_start", 1, [2, 3], True),
    ],
)
def test_an_incident_during_a_fault_is_skipped_whether_or_not_the_guard_goes_off(
    ranks: Server, tmp_path: Path, misbehaviour: str, bad_step: int, applied: list[int], gives_up: bool
) -> None:
    flag, drill = DRILL
    planted = (flag, drill.replace("step=2", f"step={bad_step}"))

    finished = run(ranks, tmp_path, misbehaviour, *planted, "--nanguard-on-nonfinite", "skip")

    assert finished.codes == {0: 0, 1: 0, 2: 0, 3: 0}
    assert files_of(tmp_path).incidents == [f"step_{bad_step:08d}"]
    assert files_of(tmp_path).merged(bad_step)["ranks"]["bad_before"] == [0, 1]
    assert [step.number for step in steps_of(finished)] == applied, "a skipped step has no norm"
    assert all(math.isfinite(step.loss) and math.isfinite(step.grad_norm) for step in steps_of(finished))
    assert [rank for rank, line in log_lines(finished) if line == GAVE_UP] == ([0] if gives_up else [])
    assert bucket_checks(finished) == 4 * [ON if gives_up else OFF]


# A rank that is lost in an incident ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("misbehaviour", "code"), [("die_in_the_exchange", 137), ("raise_in_the_exchange", 65)])
def test_when_a_rank_dies_in_the_exchange_all_leave_within_seconds(
    ranks: Server, tmp_path: Path, misbehaviour: str, code: int
) -> None:
    finished = run(ranks, tmp_path, misbehaviour, *DRILL, linger=10)

    assert finished.codes == {0: 65, 1: 65, 2: 65, 3: code}
    assert finished.seconds < 30, "the deadline of 120 s is not needed"
    written = files_of(tmp_path).postmortems(2)
    assert [name[:9] for name in written] == ["rank00000", "rank00001", "rank00002", "rank00003"]
    assert {found["phase"] for found in written.values()} == {"signal"}
    assert [found["flags"]["local"] for found in written.values()] == [True, True, False, False]


def test_when_the_merging_rank_dies_every_postmortem_is_complete_and_the_origin_was_merged(
    ranks: Server, tmp_path: Path
) -> None:
    finished = run(ranks, tmp_path, "die_while_merging", *DRILL, env={"AT_FAULT": "0"}, linger=10)

    assert finished.codes == {0: 137, 1: 65, 2: 65, 3: 65}
    written = files_of(tmp_path).postmortems(2)
    assert [name[:9] for name in written] == ["rank00000", "rank00001", "rank00002", "rank00003"]
    assert [found["phase"] for found in written.values()] == 4 * ["complete"]
    assert [found["ranks"]["bad_before"] for found in written.values()] == 4 * [[0, 1]]
    merged = files_of(tmp_path).merged(2)
    assert merged["ranks"] == {"bad_before": [0, 1], "bad_after_only": [2, 3], "clean": []}
    assert [origin["rank"] for origin in merged["origin"]] == [1]
    assert (merged["policy"]["action"], merged["causes"]) == ("unknown", [])


def test_when_a_rank_hangs_in_the_exchange_the_others_leave_after_the_deadline(ranks: Server, tmp_path: Path) -> None:
    finished = run(ranks, tmp_path, "stop_in_the_exchange", *DRILL, "--nanguard-deadline", str(DEADLINE_SECONDS))

    assert finished.codes == {0: 65, 1: 65, 2: 65}, "the launcher has to kill rank 3"
    assert finished.code == 65
    # Besides the deadline: ten seconds of the launcher for ranks that leave on purpose, three from SIGTERM to SIGKILL.
    assert DEADLINE_SECONDS < finished.seconds < DEADLINE_SECONDS + 30
    late = "leaves an incident in stage 'exchange': the deadline has passed (--nanguard-deadline)"
    assert [rank for rank, line in log_lines(finished) if late in line]
    assert [name[:9] for name in files_of(tmp_path).postmortems(2)] == [
        *("rank00000", "rank00001", "rank00002", "rank00003")
    ]


# A disk that cannot be written --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["abort", pytest.param("skip", marks=pytest.mark.long)])
def test_a_directory_that_cannot_be_written_costs_one_line(ranks: Server, tmp_path: Path, policy: str) -> None:
    (tmp_path / "file").write_text("no directory")
    directory = ("--nanguard-dir", str(tmp_path / "file" / "evidence"))

    finished = run(ranks, tmp_path, "nothing", *DRILL, *directory, "--nanguard-on-nonfinite", policy)

    assert finished.codes == dict.fromkeys(range(4), 65 if policy == "abort" else 0)
    assert len([line for _, line in log_lines(finished) if line.startswith("cannot write ")]) == 1
    reports = [(rank, line) for rank, line in log_lines(finished) if line.startswith("non-finite gradient")]
    assert [rank for rank, _ in reports] == [0]
    assert "ranks 0, 1, that is data-parallel replica 0" in reports[0][1]
    assert "a fault of nanguard's own" not in finished.out
    assert bucket_checks(finished) == ([] if policy == "abort" else 4 * [OFF])
