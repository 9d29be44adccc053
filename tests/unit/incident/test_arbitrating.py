"""Who asks a peer, and who that is: alike on all ranks, from what each of them says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megatron_nanguard.incident.arbitrating import NOBODY, TIME_IS_UP, Roles, arbitrate_all
from tests.unit.arbitration.calls import catch
from tests.unit.incident.conftest import Watched

RANKS = (0, 1, 4, 5)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, 0), (0, 0), (0, 0), (0, 0)], NOBODY),
        # The first rank with an origin asks, the last one without answers.
        ([(0, 0), (2, 1), (0, 0), (0, 0)], Roles(asker=1, peer=5)),
        ([(1, 1), (0, 0), (1, 1), (3, 1)], Roles(asker=0, peer=1)),
        # A call that could not be saved cannot travel.
        ([(0, 0), (1, 0), (0, 0), (1, 1)], Roles(asker=1, peer=None)),
        # Every rank has an origin: no one is left to be a second device.
        ([(1, 1), (1, 1), (1, 1), (1, 1)], Roles(asker=0, peer=None)),
    ],
)
def test_the_roles_follow_from_the_rows(rows: list[tuple[int, int]], expected: Roles) -> None:
    assert Roles.of(rows, RANKS) == expected


@pytest.mark.parametrize(("deadline", "repeats", "note"), [(60.0, 8, ""), (0.0, 0, TIME_IS_UP)])
def test_no_call_is_begun_when_the_time_is_up(
    watch: Callable[..., Watched], tmp_path: Path, deadline: float, repeats: int, note: str
) -> None:
    calls = [catch(torch.tensor([-1.0]).log, "aten.log.default")] * 2
    (_, last) = arbitrate_all(watch().subject, calls, NOBODY, tmp_path, deadline, saves=False)
    assert (last.repeats, last.note) == (repeats, note)
