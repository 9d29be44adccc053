"""Trouble in an incident on two ranks of real Megatron: nothing hangs, no rank leaves with 0, the policy holds.

`trouble.py` is the script; rank 1 meets a NaN in step 2.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_server import Finished, Server
from tests.ranks.layouts import COMMON, Layout
from tests.ranks.run_files import RunFiles

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).with_name("trouble.py")
SMALL = Layout(2, (*COMMON, "--bf16", "--num-layers", "2", "--global-batch-size", "8"))
ON, OFF = "bucket check [True]", "bucket check [False]"


def run(
    ranks: Server, folder: Path, trouble: str, policy: str, *more: str, at_fault: str = "1", twice: bool = False
) -> Finished:
    args = SMALL.plus("--nanguard", "--nanguard-on-nonfinite", policy, *more).args
    env = {"TROUBLE": trouble, "AT_FAULT": at_fault, **({"TWICE": "1"} if twice else {})}
    return ranks.run(2, SCRIPT, args, env=env, cwd=folder, linger=10)


def sentences(finished: Finished) -> list[str]:
    return [line for rank in (0, 1) for line in finished.lines(rank) if "non-finite gradient or loss. " in line]


def end_of(finished: Finished, word: str) -> list[str]:
    """The line that begins with this word, by rank."""
    return [line for rank in (0, 1) for line in finished.lines(rank) if line.startswith(word)]


@pytest.fixture(scope="module")
def skipped(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The twin: the same NaN, without trouble, and the step is skipped."""
    return run(ranks, tmp_path_factory.mktemp("twin"), "nothing", "skip")


def test_twin_without_trouble_the_step_is_skipped_and_the_guard_stays_on(skipped: Finished) -> None:
    assert skipped.codes == {0: 0, 1: 0}, skipped.out
    (sentence,) = sentences(skipped)
    assert "It began on rank 1, " in sentence
    assert end_of(skipped, "bucket check") == [OFF, OFF]


@pytest.mark.parametrize(
    ("trouble", "at_fault", "more"),
    [
        ("disk_full_in_files", "0 1", ()),
        ("disk_full_in_files", "1", ()),
        ("slow_digests", "1", ("--nanguard-deadline", "8")),
    ],
)
def test_a_full_or_slow_directory_ends_no_run_that_skips(
    ranks: Server, tmp_path: Path, skipped: Finished, trouble: str, at_fault: str, more: tuple[str, ...]
) -> None:
    finished = run(ranks, tmp_path, trouble, "skip", *more, at_fault=at_fault)

    assert finished.codes == {0: 0, 1: 0}, finished.out
    (sentence,) = sentences(finished)
    (of_twin,) = sentences(skipped)
    assert sentence.partition(" See: ")[0] == of_twin.partition(" See: ")[0], "ranks, origin and cause are all there"
    assert "a fault of nanguard's own" not in finished.out
    assert len([line for rank in (0, 1) for line in finished.lines(rank) if "] cannot " in line]) == 1
    assert end_of(finished, "bucket check") == [OFF, OFF]
    assert end_of(finished, "weights") == end_of(skipped, "weights")


@pytest.mark.parametrize("at_fault", ["0 1", "1"])
def test_an_unwritable_directory_loses_neither_origin_nor_cause(
    ranks: Server, tmp_path: Path, skipped: Finished, at_fault: str
) -> None:
    (tmp_path / "file").write_text("no directory")
    directory = ("--nanguard-dir", str(tmp_path / "file" / "evidence")) if at_fault == "0 1" else ()
    trouble = "nothing" if directory else "disk_full"

    finished = run(ranks, tmp_path, trouble, "skip", *directory, at_fault=at_fault)

    assert finished.codes == {0: 0, 1: 0}, finished.out
    (sentence,) = sentences(finished)
    (of_twin,) = sentences(skipped)
    assert sentence.partition(" See: ")[0] == of_twin.partition(" See: ")[0]
    assert len([line for rank in (0, 1) for line in finished.lines(rank) if "] cannot write " in line]) == 1


def test_hosts_without_a_shared_directory_lose_neither_origin_nor_cause(
    ranks: Server, tmp_path: Path, skipped: Finished
) -> None:
    finished = run(ranks, tmp_path, "directory_of_its_own", "skip")

    assert finished.codes == {0: 0, 1: 0}, finished.out
    (sentence,) = sentences(finished)
    (of_twin,) = sentences(skipped)
    assert "It began on rank 1, " in sentence
    assert sentence.partition(". It began")[0] == of_twin.partition(". It began")[0]
    assert "a fault of nanguard's own" not in finished.out
    merged = RunFiles.only_one_of(tmp_path / "nanguard").merged(2)
    assert (merged["missing_ranks"], [origin["rank"] for origin in merged["origin"]]) == ([], [1])


@pytest.mark.parametrize(("trouble", "at_fault"), [("fail_in_audit", "1"), ("fail_in_merging", "0")])
def test_a_fault_of_ours_in_an_incident_leaves_the_guard_on_and_the_next_bad_step_is_skipped_too(
    ranks: Server, tmp_path: Path, trouble: str, at_fault: str
) -> None:
    finished = run(ranks, tmp_path, trouble, "skip", at_fault=at_fault, twice=True)

    assert finished.codes == {0: 0, 1: 0}, finished.out
    assert finished.out.count("a fault of nanguard's own in incident, ") == 1
    assert len(sentences(finished)) == 2
    assert all("It began on rank 1, " in sentence for sentence in sentences(finished))
    assert end_of(finished, "bucket check") == [OFF, OFF]
    postmortems = [RunFiles.only_one_of(tmp_path / "nanguard").postmortems(step) for step in (2, 3)]
    faulty = [[own["flags"]["own_fault"] for own in of_step.values()] for of_step in postmortems]
    assert faulty == 2 * [[rank == int(at_fault) for rank in (0, 1)]]


@pytest.mark.parametrize("trouble", ["exit_in_replay", "interrupt_in_replay"])
def test_a_script_that_ends_its_process_in_a_replay_takes_all_ranks_along_at_once_and_never_with_0(
    ranks: Server, tmp_path: Path, trouble: str
) -> None:
    finished = run(ranks, tmp_path, trouble, "skip", at_fault="0")

    assert finished.codes == {0: 65, 1: 65}, finished.out
    assert finished.seconds < 60, "the deadline of 120 s is not needed"
    assert any("of rank 1 " in sentence for sentence in sentences(finished))
