"""Who asks a peer, and who that is: alike on all ranks, from what each of them says; and a bundle without a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_nanguard.arbitration.call_catcher import COMMUNICATES, CaughtCall, unsaved_call
from megatron_nanguard.incident.arbitrating import (
    CAME_BACK_NOWHERE,
    NO_OPERATOR,
    NOBODY,
    TIME_IS_UP,
    Roles,
    arbitrate_all,
    send_first,
    without_call,
)
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.records.suspect_call import SavedCall
from megatron_nanguard.records.trace import OriginKind
from tests.unit.arbitration.calls import catch
from tests.unit.factories import incident
from tests.unit.guarded_run.watched import Watched

RANKS = (0, 1, 4, 5)
CALL = catch(torch.tensor([-1.0]).log, "aten.log.default")


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


def files_in(root: Path) -> RunDirectory:
    return RunDirectory(root, "run-1", pytest.fail)


@pytest.mark.parametrize(("deadline", "repeats", "note"), [(60.0, 8, ""), (0.0, 0, TIME_IS_UP)])
def test_no_call_is_begun_when_the_time_is_up(
    watch: Callable[..., Watched], tmp_path: Path, deadline: float, repeats: int, note: str
) -> None:
    (_, last) = arbitrate_all(watch().guarded, [CALL] * 2, NOBODY, files_in(tmp_path), "", deadline, saves=False)
    assert (last.repeats, last.note) == (repeats, note)


@pytest.mark.parametrize(
    ("rank", "roles", "call", "is_sent"),
    [
        (5, Roles(asker=5, peer=6), CALL, True),
        (6, Roles(asker=5, peer=6), None, False),
        (4, Roles(asker=5, peer=6), CALL, False),
        (5, Roles(asker=5, peer=None), CALL, False),
        (5, Roles(asker=5, peer=6), unsaved_call(5, 7, "c10d.allreduce_.default", COMMUNICATES), False),
        (5, NOBODY, None, False),
    ],
)
def test_the_askers_first_call_is_sent_and_no_other(
    tmp_path: Path, rank: int, roles: Roles, call: CaughtCall | None, is_sent: bool
) -> None:
    files = files_in(tmp_path)
    send_first(() if call is None else (call, call), roles, rank, files, "")
    assert [path.name for path in files.path.glob("peer/*")] == (["rank00005"] if is_sent else [])


SPOILED = Origin(
    *(1, "tp1pp0dp0", 1, "forward", "embedding", "allreduce_", "0", "nan", None, ()), kind=OriginKind.COMMUNICATION
)
BACK = ReplaySummary(True, passes=(ReplayPass("plain", "yes"), ReplayPass("traced", "no")))
GONE = ReplaySummary(True, passes=(ReplayPass("plain", "no"), ReplayPass("synchronous", "no")))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            incident(replay=BACK, origin=(SPOILED,)),
            SavedCall(rank=1, step=3, operator="allreduce_", module="embedding", phase="forward", why_not=COMMUNICATES),
        ),
        (
            incident(replay=GONE, ranks=RankSets((4, 5), (), ())),
            SavedCall(rank=4, step=3, operator="", why_not=CAME_BACK_NOWHERE),
        ),
        (
            incident(replay=BACK, ranks=RankSets((), (2,), ())),
            SavedCall(rank=2, step=3, operator="", why_not=NO_OPERATOR),
        ),
        # A rank has its call, or could not save it; and without a replay nothing is known.
        (incident(replay=BACK, origin=(replace(SPOILED, kind=OriginKind.OPERATOR),)), None),
        (incident(replay=ReplaySummary(False, "switched off")), None),
    ],
)
def test_without_a_suspect_call_the_bundle_gives_the_reason(found: Incident, expected: SavedCall | None) -> None:
    call = without_call(found)

    assert (None if call is None else call.saved) == expected
