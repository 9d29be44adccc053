"""`nanguard screen` on 8 CPU ranks: the planted fault is named, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.machine.screening import Screening
from tests.import_server import Finished, Server

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).parents[2] / "scripts" / "nanguard.py"
LAYOUT = ("--tp", "2", "--pp", "2", "--memory-share", "0.001")
PLANTED = "tests.ranks.faulty_ranks:"


def screen(ranks: Server, folder: Path, fault: str | None, *more: str) -> tuple[Finished, Screening]:
    """The run and the record it wrote."""
    file = folder / "screening.json"
    args = ("screen", *LAYOUT, "--json", str(file), *more)
    in_rank = None if fault is None else PLANTED + fault
    finished = ranks.run(8, SCRIPT, args, cwd=folder, in_rank=in_rank, linger=5.0)
    assert file.exists(), finished.out
    return finished, read_record(Screening, file)


def named(screening: Screening) -> list[tuple[str, tuple[int, ...]]]:
    return [(outlier.kind, outlier.ranks) for outlier in screening.outliers]


def test_a_healthy_job_has_no_outlier_and_everything_was_tried(ranks: Server, tmp_path: Path) -> None:
    finished, screening = screen(ranks, tmp_path, None)

    assert (finished.code, named(screening), screening.notes) == (0, [], ())
    assert "no outlier among 8 ranks" in finished.out
    rank_5 = screening.ranks[5]
    assert len(rank_5.devices) == 11
    # TP2 DP2 PP2: a cube, of which each rank has three neighbours, both ways.
    assert {(each.source, each.target) for each in rank_5.transfers} == {
        (5, 4),
        (4, 5),
        (5, 7),
        (7, 5),
        (5, 1),
        (1, 5),
    }
    assert {(each.axis, each.ranks) for each in rank_5.collectives} == {
        ("tp", (4, 5)),
        ("dp", (5, 7)),
        ("pp", (1, 5)),
        ("all", tuple(range(8))),
    }
    assert {each.operation for each in rank_5.collectives} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
    }


def test_torchrun_starts_it_on_ranks_that_no_power_of_two_divides(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "-m"]
    options = ("--pp", "3", "--memory-share", "0.001", "--json", "screening.json")
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "megatron_nanguard", "screen", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" s\n")
    assert "no outlier among 3 ranks" in done.stdout
    assert "screening devices\nscreening links\nscreening collectives\n" in done.stderr
    screening = read_record(Screening, tmp_path / "screening.json")
    assert {(each.source, each.target) for each in screening.ranks[0].transfers} == {(0, 1), (1, 0), (0, 2), (2, 0)}


def test_a_bad_device_and_a_bad_link_are_named_and_nothing_else(ranks: Server, tmp_path: Path) -> None:
    finished, screening = screen(ranks, tmp_path, "bad_device_and_link")

    assert (finished.code, named(screening)) == (1, [("device", (5,)), ("link", (4, 6))])
    assert "OUTLIER device: rank 5 (TP 1, PP 1, DP 0) computes wrongly" in finished.out
    assert "OUTLIER link: link from rank 4 (TP 0, PP 1, DP 0) to rank 6 (TP 0, PP 1, DP 1)" in finished.out
    device, link = screening.outliers
    assert {line.partition(":")[0] for line in device.evidence} == {
        "matmul of whole numbers, bfloat16",
        "matmul, bfloat16",
    }
    assert link.evidence[0].startswith("rank 4 to rank 6: sent ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "accused", "words"),
    [
        ("bad_device", ("device", (5,)), "rank 5 (TP 1, PP 1, DP 0) computes wrongly"),
        ("bad_link", ("link", (4, 6)), "link from rank 4 (TP 0, PP 1, DP 0) to rank 6 (TP 0, PP 1, DP 1)"),
        ("bad_sender", ("rank", (4,)), "rank 4 (TP 0, PP 1, DP 0) sends to none of its peers as it should"),
        ("bad_collective", ("group", (4, 6)), "dp group of ranks 4, 6: all_reduce bad on rank 6"),
    ],
)
def test_what_was_planted_is_named_and_nothing_else(
    ranks: Server, tmp_path: Path, fault: str, accused: tuple[str, tuple[int, ...]], words: str
) -> None:
    finished, screening = screen(ranks, tmp_path, fault)

    assert (finished.code, named(screening)) == (1, [accused])
    assert screening.outliers[0].words.startswith(words)
    assert f"OUTLIER {accused[0]}: {words}" in finished.out


def test_a_device_that_raises_is_named_and_not_used_any_more(ranks: Server, tmp_path: Path) -> None:
    finished, screening = screen(ranks, tmp_path, "failing_device")

    assert (finished.code, named(screening)) == (1, [("device", (5,))])
    assert screening.outliers[0].evidence == ("matmul: CUDA error: uncorrectable ECC error encountered",)
    assert screening.notes == ("links and collectives were not tried: a device that raised an error is of no more use",)


def test_a_link_that_hangs_is_named_within_the_deadline(ranks: Server, tmp_path: Path) -> None:
    finished, screening = screen(ranks, tmp_path, "hung_link", "--deadline", "3")

    assert (finished.code, named(screening)) == (1, [("link", (4, 6))])
    assert "messages do not arrive in time" in screening.outliers[0].words
    # Once as a link, once in its data-parallel group.
    assert screening.seconds < 3 * 3.0 + 15.0


def test_a_device_that_hangs_is_named_and_the_others_leave(ranks: Server, tmp_path: Path) -> None:
    finished, screening = screen(ranks, tmp_path, "hung_device", "--deadline", "3")

    assert finished.code == 1
    assert named(screening) == [("rank", (5,))]
    assert screening.outliers[0].evidence == ("from devices, matmul",)
    assert [each.rank for each in screening.ranks] == [0, 1, 2, 3, 4, 6, 7]
