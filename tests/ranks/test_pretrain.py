"""The pretrain script that ships: tokenized data from disk, evaluation, and a run that is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS, Layout
from tests.ranks.training_log import steps_of

pytestmark = pytest.mark.ranks

PRETRAIN = pretrain_script()

# 64 documents of 40 tokens each; document n counts upwards from n.
WRITE_DATA = """
import sys, numpy
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder, get_bin_path, get_idx_path
builder = IndexedDatasetBuilder(get_bin_path(sys.argv[1]), dtype=numpy.int32)
for first in range(64):
    builder.add_document((numpy.arange(40) + first) % 128, [40])
builder.finalize(get_idx_path(sys.argv[1]))
"""


@pytest.fixture
def data(ranks: Server, tmp_path: Path) -> str:
    """Prefix of a small data set in Megatron's own format."""
    (tmp_path / "write.py").write_text(WRITE_DATA, encoding="utf-8")
    finished = ranks.run(1, tmp_path / "write.py", [str(tmp_path / "counting")])
    assert finished.code == 0, finished.out
    return str(tmp_path / "counting")


def on_data(layout: Layout, data: str, *more: str) -> Layout:
    """The layout, with a data set in place of the mock data."""
    args = tuple(word for word in layout.args if word != "--mock-data")
    return Layout(layout.nproc, (*args, "--data-path", data, "--split", "80,20,0", *more))


@pytest.mark.parametrize("mask", [(), ("--reset-attention-mask", "--reset-position-ids")], ids=["causal", "documents"])
def test_real_data_is_read_and_evaluated(ranks: Server, tmp_path: Path, data: str, mask: tuple[str, ...]) -> None:
    layout = on_data(LAYOUTS["D1"], data, "--eval-iters", "1", "--eval-interval", "2", *mask)

    finished = ranks.run(1, PRETRAIN, layout.args, cwd=tmp_path)

    steps = steps_of(finished)
    assert len(steps) == 3
    assert steps[2].loss < steps[0].loss
    assert "validation loss at iteration 2" in finished.out


@pytest.mark.long
def test_real_data_on_eight_ranks(ranks: Server, tmp_path: Path, data: str) -> None:
    layout = on_data(LAYOUTS["A"], data)

    assert len(steps_of(ranks.run(8, PRETRAIN, layout.args, cwd=tmp_path))) == 3


@pytest.mark.long
def test_a_resumed_run_goes_on_as_if_never_stopped(ranks: Server, tmp_path: Path) -> None:
    layout = LAYOUTS["D2"].plus("--bf16", "--use-distributed-optimizer", "--hidden-dropout", "0.1")
    saving = layout.plus("--save", str(tmp_path / "saved"), "--save-interval", "2", "--exit-interval", "2")
    resuming = layout.plus("--load", str(tmp_path / "saved"))

    straight = steps_of(ranks.run(2, PRETRAIN, layout.args, cwd=tmp_path))
    first = steps_of(ranks.run(2, PRETRAIN, saving.args, cwd=tmp_path))
    second = steps_of(ranks.run(2, PRETRAIN, resuming.args, cwd=tmp_path))

    assert first == straight[:2]
    assert second == straight[2:]
