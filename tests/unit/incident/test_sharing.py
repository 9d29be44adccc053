"""Who sends evidence that no file carries, and that it arrives as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.incident import sharing
from megatron_nanguard.incident.sharing import MOST_SENDERS, Evidence, gather, pack, senders, share, unpack
from megatron_nanguard.incident.stage_faults import StageFaults
from tests.unit.diagnosis.factories import sink, to_origin, trace, traced_origin
from tests.unit.factories import demo_postmortem

ORIGIN = Evidence(demo_postmortem(5), trace(5, origins=(traced_origin(),), sinks=(sink(to_origin()),)))


def test_ranks_with_an_origin_send_first_and_those_with_nothing_not_at_all() -> None:
    assert senders([1, 2, 0, 3], (0, 1, 4, 5)) == [5, 1, 0]
    assert senders([1] * 100, range(100)) == list(range(MOST_SENDERS))
    assert senders([0, 0], (0, 1)) == []


def test_evidence_comes_out_of_its_bytes_as_it_was() -> None:
    assert unpack(pack(ORIGIN)) == ORIGIN
    without = Evidence(demo_postmortem(0), None)
    assert unpack(pack(without)) == without


def test_what_is_too_large_goes_without_its_trace_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    postmortem = len(pack(Evidence(ORIGIN.postmortem, None)))
    monkeypatch.setattr(sharing, "MOST_BYTES", postmortem)
    assert unpack(pack(ORIGIN)) == Evidence(ORIGIN.postmortem, None)
    monkeypatch.setattr(sharing, "MOST_BYTES", postmortem - 1)
    assert pack(ORIGIN) == b""


@pytest.mark.usefixtures("world_of_one")
def test_one_rank_gets_its_own_back_and_nothing_where_it_has_none() -> None:
    voters, cpu, faults = Voters((0,), None), torch.device("cpu"), StageFaults({})
    mine = replace(demo_postmortem(0))
    assert share(Evidence(mine, None), 0, voters, cpu, faults) == (Evidence(mine, None),)
    assert share(None, 0, voters, cpu, faults) == ()
    assert faults.now == {}


@pytest.mark.usefixtures("world_of_one")
def test_evidence_that_cannot_be_packed_is_a_fault_of_this_rank_and_the_exchange_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> bytes:
        raise LookupError("planted by the test")

    faults = StageFaults({})
    monkeypatch.setattr(sharing, "pack", fail)
    assert share(ORIGIN, 0, Voters((0,), None), torch.device("cpu"), faults) == ()
    assert list(faults.now) == ["sending of evidence"]


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(
    ("has_written", "sees_all", "is_shared"), [(True, True, False), (False, True, True), (True, False, True)]
)
def test_evidence_is_sent_only_where_the_files_do_not_carry_it(
    monkeypatch: pytest.MonkeyPatch, has_written: bool, sees_all: bool, is_shared: bool
) -> None:
    sent = [Evidence(demo_postmortem(rank), None) for rank in range(2)]
    monkeypatch.setattr(sharing, "share", lambda *args: tuple(sent))
    voters, cpu, faults = Voters((0,), None), torch.device("cpu"), StageFaults({})
    found = gather(sent[0], 0, voters, cpu, faults, has_written=has_written, sees_all=lambda: sees_all)
    assert found == tuple(sent if is_shared else sent[:1])
