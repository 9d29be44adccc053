"""What the timings of `bench.sh report` are taken on: as many files as a large run, of the sizes that it would have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megatron_nanguard.postmortem.limits import limit_of
from megatron_nanguard.records.json.record_file import to_json

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import many_ranks


@pytest.mark.parametrize(
    ("stage", "bad_before", "infected", "clean"), [(15, 128, 16256, 0), (7, 64, 8128, 8192)], ids=["last", "middle"]
)
def test_every_rank_stands_in_one_set(stage: int, bad_before: int, infected: int, clean: int) -> None:
    sets = many_ranks.sets(stage)

    assert [len(ranks) for ranks in vars(sets).values()] == [bad_before, infected, clean]
    assert sorted(rank for ranks in vars(sets).values() for rank in ranks) == list(range(16384))


def test_the_files_have_the_sizes_of_a_run() -> None:
    sets = many_ranks.sets(7)
    wanted = {sets.clean[0], sets.bad_after_only[0], sets.bad_before[0]}
    written = {one.coordinates.rank: one for one in many_ranks.postmortems(7) if one.coordinates.rank in wanted}
    sizes = [len(to_json(written[ranks[0]])) >> 10 for ranks in (sets.clean, sets.bad_after_only, sets.bad_before)]

    assert 3 <= sizes[0] <= 4 and 28 <= sizes[1] <= 32 and 200 <= sizes[2] <= 300
    assert all(len(to_json(one)) <= limit_of(one) for one in written.values())
