"""A step that was applied though its gradient norm was not finite: it shows only after the vote, in the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_server import Server
from tests.ranks.run_files import RunFiles
from tests.ranks.test_causes import TWO, check_twin, train

pytestmark = pytest.mark.ranks

SEAM = {2: "norm_of_the_sum"}


def test_a_norm_that_is_infinite_only_in_the_sum_over_the_ranks_is_reported_by_the_next_step(
    ranks: Server, tmp_path: Path
) -> None:
    finished = train(ranks, TWO, tmp_path, SEAM, "--train-iters", "4")

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000003"]
    merged = run.merged(3)
    assert (merged["kind"], merged["ranks"]) == ("dead_step", {"bad_before": [], "bad_after_only": [], "clean": [0, 1]})
    assert merged["summary"].startswith("Step 3: the step was applied though its gradient norm was not finite")
    assert (merged["grad_norm"], merged["clip_coefficient"]) == ({"$float": "inf"}, 0.0)
    assert merged["replay"]["why_not"] == "the step that went bad is the one before; its data is gone"
    assert merged["origin"] == []
    assert merged["causes"][0]["cause"] == "norm_overflow"
    assert [own["flags"]["dead_step"] for own in run.postmortems(3).values()] == [True, True]


def test_the_same_sum_without_a_bad_value_is_silent(ranks: Server, tmp_path: Path) -> None:
    check_twin(ranks, TWO, tmp_path, SEAM)
