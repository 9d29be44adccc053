"""Groups of ranks in few numbers."""

from __future__ import annotations

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.json.record_file import from_json, to_json


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        ((3,), ((3, 4, 1),)),
        (range(16384), ((0, 16384, 1),)),
        ((1, 9, 17, 25), ((1, 26, 8),)),
        ((0, 1, 2, 8, 9, 10), ((0, 3, 1), (8, 11, 1))),
        ((0, 1, 5), ((0, 2, 1), (5, 6, 1))),
        ((5, 4, 6), ((5, 6, 1), (4, 7, 2))),
        ((), ()),
    ],
)
def test_ranks_are_kept_in_runs_and_in_their_order(ranks: tuple[int, ...], runs: tuple[tuple[int, int, int]]) -> None:
    group = Channel.group(ranks)

    assert group.runs == runs
    assert group.ranks == tuple(ranks)
    assert len(group) == len(ranks)


@pytest.mark.parametrize(("source", "destination"), [(0, 4), (4, 0)])
def test_one_way_from_rank_to_rank(source: int, destination: int) -> None:
    channel = Channel.p2p(source, destination)

    assert (channel.ranks, channel.senders) == ((source, destination), (source,))


def test_every_member_of_a_group_may_have_sent() -> None:
    assert Channel.group((0, 2)).senders == (0, 2)


def test_the_file_has_three_numbers_for_a_world() -> None:
    channel = Channel.group(range(16384))

    assert to_json(channel).split() == b'{ "kind": "group", "runs": [ [ 0, 16384, 1 ] ] }'.split()
    assert from_json(Channel, to_json(channel)) == channel


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ("[[0, 8, 0]]", "ranks of a channel are ((0, 8, 0),), expected (start, stop, step), start below stop"),
        ("[[-1, 8, 1]]", "ranks of a channel are ((-1, 8, 1),), expected (start, stop, step), start below stop"),
        (
            "[[0, 99999999, 1]]",
            "ranks of a channel are ((0, 99999999, 1),), expected (start, stop, step), start below stop",
        ),
        ("[[0, 3, 1]]", "a channel p2p has 3 ranks, expected 2"),
    ],
)
def test_ranks_that_no_run_has_are_refused(runs: str, words: str) -> None:
    with pytest.raises(PostmortemError) as caught:
        from_json(Channel, f'{{"kind": "p2p", "runs": {runs}}}'.encode(), source="trace.json")

    assert str(caught.value) == f"trace.json: {words}"
