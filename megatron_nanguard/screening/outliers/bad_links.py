"""Narrows bad transfers to a rank that fails with all its peers, or else to single links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from megatron_nanguard.records.machine.screening import Outlier, Transfer

Pair = tuple[int, int]
"""Source and target."""


class _Ends(NamedTuple):
    """One message as its sender and its receiver saw it."""

    sent: Transfer
    arrived: Transfer

    @property
    def is_bad(self) -> bool:
        return self.sent.result != "right" or self.arrived.result != "right"

    @property
    def words(self) -> str:
        way = f"rank {self.sent.source} to rank {self.sent.target}"
        if self.arrived.result == "wrong" and self.sent.result == "right":
            return f"{way}: sent {self.sent.digest}, arrived {self.arrived.digest}"
        if self.sent.result == "wrong":
            return f"{way}: {self.sent.digest} at the sender, expected {self.sent.expected}"
        worse = self.arrived if self.arrived.result != "right" else self.sent
        return f"{way}: {worse.result}, {worse.words}"


def find_bad_links(transfers: Iterable[Transfer], rank_name: Callable[[int], str]) -> list[Outlier]:
    """Name ranks whose messages are bad with every peer (two at least), then the remaining bad links.

    A message that only one end tried is ignored: the other end had stopped testing the link before.

    Args:
        transfers: results of all ranks.
        rank_name: words for a rank.
    """
    messages = _both_ends(transfers)
    found = []
    while worst := _worst_rank(messages):
        rank, words = worst
        mine = {pair: ends for pair, ends in messages.items() if rank in pair}
        found.append(Outlier("rank", (rank,), f"{rank_name(rank)} {words}", _evidence(mine)))
        messages = {pair: ends for pair, ends in messages.items() if rank not in pair}
    bad = {pair: ends for pair, ends in messages.items() if ends.is_bad}
    for low, high in sorted({(min(pair), max(pair)) for pair in bad}):
        both = {pair: bad[pair] for pair in ((low, high), (high, low)) if pair in bad}
        found.append(_link(both, rank_name))
    return found


def _both_ends(transfers: Iterable[Transfer]) -> dict[Pair, _Ends]:
    views: dict[Pair, dict[str, Transfer]] = {}
    for transfer in transfers:
        views.setdefault((transfer.source, transfer.target), {})[transfer.end] = transfer
    return {pair: _Ends(**ends) for pair, ends in views.items() if len(ends) == 2}


def _worst_rank(messages: Mapping[Pair, _Ends]) -> tuple[int, str] | None:
    """The rank that explains most bad messages, and how it fails."""
    bad = {pair for pair, ends in messages.items() if ends.is_bad}
    candidates = []
    for rank in sorted({rank for pair in bad for rank in pair}):
        if words := _fails_at(rank, messages, bad):
            candidates.append((sum(rank in pair for pair in bad), -rank, words))
    if not candidates:
        return None
    _, rank, words = max(candidates)
    return -rank, words


def _fails_at(rank: int, messages: Mapping[Pair, _Ends], bad: Collection[Pair]) -> str:
    if any(ends.sent.result == "wrong" for pair, ends in messages.items() if pair[0] == rank):
        return "holds wrong data before it sends them"
    sends = [pair for pair in messages if pair[0] == rank]
    receives = [pair for pair in messages if pair[1] == rank]
    if _all_bad([*sends, *receives], rank, bad):
        return "exchanges with none of its peers as it should"
    if _all_bad(sends, rank, bad):
        return "sends to none of its peers as it should"
    return "receives from none of its peers as it should" if _all_bad(receives, rank, bad) else ""


def _all_bad(pairs: Sequence[Pair], rank: int, bad: Collection[Pair]) -> bool:
    peers = {peer for pair in pairs for peer in pair if peer != rank}
    return len(peers) >= 2 and all(pair in bad for pair in pairs)


def _link(ends: Mapping[Pair, _Ends], rank_name: Callable[[int], str]) -> Outlier:
    (source, target), first = next(iter(ends.items()))
    words = (
        f"link between {rank_name(source)} and {rank_name(target)}, both ways"
        if len(ends) == 2
        else f"link from {rank_name(source)} to {rank_name(target)}"
    )
    is_wrong = first.arrived.result == "wrong"
    what = "what arrives is not what was sent" if is_wrong else "messages do not arrive in time"
    return Outlier("link", (source, target), f"{words}: {what}", _evidence(ends))


def _evidence(messages: Mapping[Pair, _Ends]) -> tuple[str, ...]:
    return tuple(ends.words for ends in messages.values() if ends.is_bad)
