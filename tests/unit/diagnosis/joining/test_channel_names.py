"""Channels and places in words."""

from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis.joining.channel_names import ChannelNames, name_place
from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import Message, MessageContents, TracedPlace
from tests.unit.diagnosis.factories import LAYOUT_A, group, p2p


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        (group(4, 5), "tensor-parallel group of pp1 dp0, ranks 4, 5"),
        (group(0, 2), "data-parallel group of tp0 pp0, ranks 0, 2"),
        (group(1, 5), "pipeline-parallel group of tp1 dp0, ranks 1, 5"),
        (group(0, 1, 2, 3), "ranks 0, 1, 2, 3"),
        (group(0, 9), "ranks 0, 9"),
        (group(3), "rank 3"),
        (p2p(4, 0), "rank 4 to rank 0"),
    ],
)
def test_a_channel_is_named_by_the_axis_on_which_its_members_differ(channel: Channel, words: str) -> None:
    assert ChannelNames(LAYOUT_A)[channel] == words


EXPERTS = {rank: f"tp0pp0dp{rank}ep{rank % 2}" for rank in range(4)}


@pytest.mark.parametrize(
    ("coords", "channel", "words"),
    [
        (EXPERTS, group(2, 3), "expert-parallel group of tp0 pp0, ranks 2, 3"),
        (EXPERTS, group(0, 2), "data-parallel group of tp0 pp0, ranks 0, 2"),
        (EXPERTS, group(0, 1, 2, 3), "data-parallel group of tp0 pp0, ranks 0, 1, 2, 3"),
        # Where every replica has experts of its own the two groups have the same members.
        (
            {rank: f"tp0pp0dp{rank}ep{rank}" for rank in range(3)},
            group(0, 1, 2),
            "data- and expert-parallel group of tp0 pp0, ranks 0, 1, 2",
        ),
    ],
)
def test_expert_groups_are_distinguished_from_those_of_replicas(
    coords: dict[int, str], channel: Channel, words: str
) -> None:
    assert ChannelNames(coords)[channel] == words


@pytest.mark.parametrize(
    ("operator", "carries", "channel", "words"),
    [
        ("recv_", "", p2p(5, 1), "PP recv from rank 5"),
        ("recv_", "", p2p(5, 9), "recv from rank 5"),
        ("allreduce_", "", group(4, 5), "TP all-reduce"),
        ("allreduce_coalesced_", "gradients", group(0, 2), "DP gradient all-reduce"),
        ("_reduce_scatter_base_", "gradients", group(0, 2), "DP gradient reduce-scatter"),
        ("_allgather_base_", "parameters", group(0, 2), "DP parameter all-gather"),
        ("allreduce_", "gradients", group(1, 5), "gradient all-reduce of tied embeddings"),
        ("broadcast_", "", group(0, 9), "broadcast"),
        ("barrier_like", "", group(0, 1), "TP barrier_like"),
    ],
)
def test_a_communication_is_named_by_its_kind(
    operator: str, carries: MessageContents, channel: Channel, words: str
) -> None:
    sent = Message(5, operator, 0, 3, "finite", "nan", carries=carries)
    assert ChannelNames(LAYOUT_A).kind(sent, channel) == words


def test_a_place_outside_of_any_module_or_micro_batch() -> None:
    assert name_place(TracedPlace("finalize", None, 0, "")) == "finalize"
    assert name_place(TracedPlace("forward", 1, 0, "decoder")) == "forward of micro-batch 1, decoder"
