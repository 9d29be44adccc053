"""Contribution and expected output of each member, by hand; tests/ranks runs the collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron_nanguard.screening import collectives
from megatron_nanguard.screening.collectives import OPERATIONS, GroupMember, try_collectives
from megatron_nanguard.screening.parallel_groups import Group

TABLE = torch.tensor([[1.0, 2.0], [10.0, 20.0]])


@pytest.fixture
def member() -> GroupMember:
    """The second of two members."""
    return GroupMember(Group("tp", (4, 5)), None, 1, TABLE.clone(), torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected", "sources"),
    [
        ("all_reduce", [11.0, 22.0], ()),
        ("all_gather", [1.0, 2.0, 10.0, 20.0], (4, 5)),
        ("reduce_scatter", [22.0], ()),
        ("all_to_all", [2.0, 20.0], (4, 5)),
        ("broadcast", [1.0, 2.0], (4,)),
    ],
)
def test_expected_output_of_a_member(
    member: GroupMember, name: str, expected: list[float], sources: tuple[int, ...]
) -> None:
    call = OPERATIONS[name](member)
    assert (call.expected.tolist(), call.sources) == (expected, sources)
    assert call.output.shape == call.expected.shape


def test_a_collective_in_place_leaves_the_table_alone(member: GroupMember) -> None:
    OPERATIONS["all_reduce"](member).output.fill_(7.0)
    assert torch.equal(member.table, TABLE)


def test_the_member_whose_part_is_wrong_is_named(member: GroupMember, monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(output: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        output.copy_(torch.tensor([1.0, 3.0, 10.0, 20.0]))

    monkeypatch.setattr(collectives, "OPERATIONS", {"all_gather": OPERATIONS["all_gather"]})
    monkeypatch.setattr(collectives, "_gather", gather)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    (check,) = try_collectives(member, 1.0)
    assert (check.operation, check.result, check.wrong_from) == ("all_gather", "wrong", (4,))


def test_after_a_collective_that_does_not_end_the_group_is_not_used(
    member: GroupMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "all_reduce", broken)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    assert [(check.operation, check.result) for check in try_collectives(member, 1.0)] == [("all_reduce", "failed")]
