"""How ranks, groups and places read in a sentence of the diagnosis."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from megatron_nanguard.records.trace import Message, TracedPlace

NAMED_RANKS = 16
"""Longest list of ranks that a sentence spells out."""

AXIS_WORDS = {
    "tp": "tensor-parallel group",
    "cp": "context-parallel group",
    "ep": "expert-parallel group",
    "dp": "data-parallel group",
    "dp+cp": "data- and context-parallel group",
    "pp": "pipeline-parallel group",
}


def name_ranks(ranks: Sequence[int]) -> str:
    """Spell out a set of ranks, or its beginning and its size: "ranks 4, 5", "rank 7", "no rank"."""
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:NAMED_RANKS])
    return f"ranks {shown}" if len(ranks) <= NAMED_RANKS else f"{len(ranks)} ranks ({shown}, ...)"


def name_message(message: Message) -> str:
    """A communication by its operator and its number on the channel: "allreduce_ no. 38"."""
    return f"{message.operator} no. {message.number}"


def name_channel(channel: Sequence[str], coords: Mapping[int, str]) -> str:
    """A channel in words: "tensor-parallel group of pp1 dp0, ranks 4, 5", "rank 5 to rank 1".

    Args:
        channel: as a message has it.
        coords: places of the ranks that are known, such as "tp1pp1dp0".
    """
    ranks = [int(rank) for rank in channel[1:]]
    if channel[0] == "p2p":
        return f"rank {ranks[0]} to rank {ranks[1]}"
    words = _group(ranks, coords)
    return f"{words}, {name_ranks(ranks)}" if words else name_ranks(ranks)


def _group(ranks: Sequence[int], coords: Mapping[int, str]) -> str:
    """What kind of group it is, where the members differ on one axis only; else empty."""
    if len(ranks) < 2 or not all(rank in coords for rank in ranks):
        return ""
    places = [dict(re.findall(r"([a-z]+)(\d+)", coords[rank])) for rank in ranks]
    axes = [axis for axis in places[0] if len({place.get(axis) for place in places}) > 1]
    shared = " ".join(f"{axis}{index}" for axis, index in places[0].items() if axis not in (*axes, "ep"))
    if axes == ["dp", "ep"]:
        # Expert ranks are folded out of the data-parallel ones: among expert peers no two have the same experts.
        axes = ["ep"] if len({place["ep"] for place in places}) == len(ranks) else ["dp"]
    kind = AXIS_WORDS.get("+".join(axes))
    return f"{kind} of {shared}" if kind else ""


def name_place(place: TracedPlace) -> str:
    """A place in the step: "backward of micro-batch 2, decoder.layers.3.mlp"."""
    when = place.phase if place.microbatch is None else f"{place.phase} of micro-batch {place.microbatch}"
    return f"{when}, {place.module}" if place.module else when
