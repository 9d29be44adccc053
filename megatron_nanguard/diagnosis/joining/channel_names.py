"""Name channels, messages and places in the sentences of the diagnosis."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.phrase import LISTED, Phrase, joined, name_ranks, phrase
from megatron_nanguard.records.trace import Message, TracedPlace, place_words

AXES: Final[dict[str, tuple[str, Phrase]]] = {
    "tp": ("TP", phrase("tensor-parallel group of {place}")),
    "cp": ("CP", phrase("context-parallel group of {place}")),
    "ep": ("EP", phrase("expert-parallel group of {place}")),
    "dp": ("DP", phrase("data-parallel group of {place}")),
    "dp+ep": ("DP", phrase("data- and expert-parallel group of {place}")),
    "dp+cp": ("DP", phrase("data- and context-parallel group of {place}")),
    "pp": ("PP", phrase("pipeline-parallel group of {place}")),
}
"""By the axes on which the members of a group differ: the name of the axis in short, and the group in words."""
CONTENTS = {"gradients": phrase("gradient {communication}"), "parameters": phrase("parameter {communication}")}
COLLECTIVES = {
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""How the name of an operator begins, without its underscores, and what the communication is called; the first that
fits."""


def name_message(message: Message) -> str:
    """A communication by its operator and its number on the channel: "allreduce_ no. 38"."""
    return phrase("{operator} no. {number}", operator=message.operator, number=message.number)


class ChannelNames:
    """Channels in words: "tensor-parallel group of pp1 dp0, ranks 4, 5", "rank 5 to rank 1".

    Args:
        coords: places of the ranks that are known, such as "tp1pp1dp0".
    """

    def __init__(self, coords: Mapping[int, str]) -> None:
        self._coords = coords
        self._known: dict[Channel, str] = {}
        self._axes: dict[Channel, str] = {}
        self._num_replicas = Counter(map(_without_replica, coords.values()))
        """How many ranks have a place that is the same but for data and expert parallelism."""

    def __getitem__(self, channel: Channel) -> str:
        """Name a channel; a group is named once, since its ranks may be many."""
        if channel.kind == "p2p":
            sender, receiver = channel.ranks
            return phrase("rank {sender} to rank {receiver}", sender=sender, receiver=receiver)
        if channel not in self._known:
            self._known[channel] = joined(LISTED, (self._group(channel.ranks), name_ranks(channel.ranks)))
        return self._known[channel]

    def kind(self, message: Message, channel: Channel) -> str:
        """What kind of communication it is: "PP recv from rank 5", "TP all-reduce", "DP gradient all-reduce"."""
        if channel not in self._axes:
            self._axes[channel] = self._axis(channel.ranks)
        axis = self._axes[channel]
        if channel.kind == "p2p":
            return _on_axis(axis, phrase("recv from rank {rank}", rank=channel.ranks[0]))
        operator = message.operator.split(".")[0].replace("_", "")
        word = next((word for start, word in COLLECTIVES.items() if operator.startswith(start)), message.operator)
        if axis == "pp" and message.carries == "gradients":
            return phrase("gradient all-reduce of tied embeddings")
        if axis == "dp+ep" and word == "all-to-all":
            axis = "ep"
        contents = CONTENTS.get(message.carries)
        return _on_axis(axis, contents.format(communication=word) if contents else word)

    def _group(self, ranks: Sequence[int]) -> str:
        """What kind of group it is, where the members differ on one axis only; else empty."""
        axes = self._axis(ranks)
        if axes not in AXES:
            return ""
        first, *others = [_place(self._coords[rank]) for rank in ranks]
        shared = [axis for axis in first if axis != "ep" and all(place.get(axis) == first[axis] for place in others)]
        return AXES[axes][1].format(place=" ".join(f"{axis}{first[axis]}" for axis in shared))

    def _axis(self, ranks: Sequence[int]) -> str:
        """On which axes the members differ, such as "tp" or "dp+cp"; empty where that is not known."""
        if len(ranks) < 2 or not all(rank in self._coords for rank in ranks):
            return ""
        places = [_place(self._coords[rank]) for rank in ranks]
        axes = [axis for axis in places[0] if len({place.get(axis) for place in places}) > 1]
        # Expert ranks are folded out of the data-parallel ones: among expert peers no two have the same experts.
        if axes == ["dp", "ep"] and len({place["ep"] for place in places}) < len(ranks):
            axes = ["dp"]
        elif axes == ["dp", "ep"] and len(ranks) < self._num_replicas[_without_replica(self._coords[ranks[0]])]:
            axes = ["ep"]
        return "+".join(axes)


def name_place(place: TracedPlace) -> str:
    """A place in the step: "backward of micro-batch 2, decoder.layers.3.mlp"."""
    return joined(LISTED, (place_words(place.phase, place.microbatch), place.module))


def _on_axis(axis: str, communication: str) -> str:
    if axis not in AXES:
        return communication
    return phrase("{axis} {communication}", axis=AXES[axis][0], communication=communication)


def _place(coords: str) -> dict[str, str]:
    """A place by axis: "tp1pp0" is tp: 1, pp: 0."""
    return dict(re.findall(r"([a-z]+)(\d+)", coords))


def _without_replica(coords: str) -> str:
    return re.sub(r"(dp|ep)\d+", "", coords)
