"""`scripts/grad_check.py` on CPU ranks: one rank, all of them, or none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.import_server import Finished, Server

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
BATCH = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def check(ranks: Server, batch: Path, *, model: str = "build", fault: str | None = None, nproc: int = 3) -> Finished:
    args = ("--model", f"tests.ranks.own_model:{model}", "--batch", str(batch))
    in_rank = None if fault is None else f"tests.ranks.faulty_ranks:{fault}"
    return ranks.run(nproc, ROOT / "scripts" / "grad_check.py", args, in_rank=in_rank, cwd=ROOT)


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    torch.save({"x": BATCH}, tmp_path / "batch.pt")
    return tmp_path / "batch.pt"


def test_a_healthy_model_is_clean(ranks: Server, batch: Path) -> None:
    finished = check(ranks, batch)
    assert finished.code == 0, finished.out
    assert finished.lines(0) == ["clean: every gradient is finite, and the same bit for bit on ranks 0, 1, 2"]
    assert finished.lines(1) == []


def test_a_bad_rank_is_named_alone(ranks: Server, batch: Path) -> None:
    finished = check(ranks, batch, fault="nan_on_one_rank")
    assert finished.code == 1
    assert finished.lines(0) == [
        "rank 1 only: the loss is nan; weight: 6 NaN, 0 Inf of 6; bias: 2 NaN, 0 Inf of 2",
    ]


def test_a_rank_with_other_bits_is_named_alone(ranks: Server, batch: Path) -> None:
    finished = check(ranks, batch, fault="other_bits_on_one_rank")
    assert finished.code == 1
    assert finished.lines(0) == ["rank 1 only: finite, but other bits than on 2 ranks in loss, weight, bias"]


def test_a_bad_batch_is_bad_on_all_ranks(ranks: Server, tmp_path: Path) -> None:
    spoiled = BATCH.clone()
    spoiled[0, 1] = math.nan
    save_file({"x": spoiled}, tmp_path / "batch.safetensors")
    finished = check(ranks, tmp_path / "batch.safetensors", model="OwnLoss", nproc=2)
    assert finished.code == 1
    assert finished.lines(0)[0].startswith("all ranks: the loss is nan; layer.weight: 6 NaN")
