"""Traces of a run of 16,384 ranks, for timings: `python scripts/many_traces.py DIR [SCENARIO]`.

They belong to the post-mortems of `many_ranks.py`; each scenario would take quadratic time in a naive join.

replica     one rank makes a NaN in backward: to its tensor-parallel peers, the stages before it, all other replicas
world       the same, and the gradients are reduced over all ranks at once
everywhere  a collective of all ranks comes back bad though all of them sent finite values
weights     a weight is bad on every rank, and every rank infects every other
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from many_ranks import DP, PP, REPLICA, SIZES, TP, place

from megatron_nanguard.postmortem.run_directory import trace_name
from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.trace import (
    LISTED,
    CauseLink,
    Message,
    OriginKind,
    RankTrace,
    Sink,
    TensorFacts,
    TracedOrigin,
    TracedPlace,
)

WORLD = TP * PP * DP
LAYER = "decoder.layers.95.mlp"
USED = TracedPlace("backward", 2, 0, "decoder.layers.95.pre_mlp_layernorm")
ORIGIN = (CauseLink("origin", 0),)
FOUND = TracedOrigin(
    event=10,
    kind=OriginKind.OPERATOR,
    operator="log",
    place=TracedPlace("backward", 2, 0, LAYER, "LogBackward0", "mlp.py:77 in gate", "log", "mlp.py:77 in gate"),
    outputs=(TensorFacts("0", (4096, 1024), "bfloat16", "nan", 3, 0, 1.5, ((0, 1), (2, 5))),),
    path=tuple(f"step {step} in {LAYER}" for step in range(100)),
)


def replica(rank: int) -> RankTrace:
    """One rank of the last stage fails; its replica is bad before the reduction, the others by it."""
    return _one_origin(rank, Channel.group(range(place(rank).pp * TP * DP + place(rank).tp, WORLD, TP)[:DP]))


def world(rank: int) -> RankTrace:
    """The same, with one group for the reduction of everything."""
    return _one_origin(rank, Channel.group(range(WORLD)))


def everywhere(rank: int) -> RankTrace:
    """Collectives of all ranks go bad on the way."""
    arrivals = tuple(_arrival(20 + number, 0, number) for number in range(LISTED))
    return _trace(rank, (Channel.group(range(WORLD)),), arrivals=arrivals)


def weights(rank: int) -> RankTrace:
    """Every rank has an origin of its own and hands it on to all."""
    messages = tuple(_arrival(20 + number, 0, number, ORIGIN) for number in range(LISTED))
    channels = (Channel.group(range(WORLD)),)
    return _trace(rank, channels, origins=(FOUND,), arrivals=messages, departures=messages)


SCENARIOS: dict[str, Callable[[int], RankTrace]] = {
    function.__name__: function for function in (replica, world, everywhere, weights)
}


def traces(scenario: str) -> Iterator[RankTrace]:
    """What each rank traces, in the order of ranks."""
    return map(SCENARIOS[scenario], range(WORLD))


def write(directory: Path, scenario: str) -> int:
    """Write the traces of all ranks into an incident directory; gives back their bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    return sum(
        (directory / trace_name(place(trace.rank), SIZES)).write_bytes(to_json(trace)) for trace in traces(scenario)
    )


def _one_origin(rank: int, reduced: Channel) -> RankTrace:
    where = place(rank)
    if where.dp != REPLICA:
        return _trace(rank, (reduced,), arrivals=tuple(_arrival(40 + n, 0, n) for n in range(LISTED - 1)))
    tensor_parallel = Channel.group(range(rank - where.tp, rank - where.tp + TP))
    stage = TP * DP
    channels = [reduced, tensor_parallel, *([Channel.p2p(rank, rank - stage)] if where.pp else [])]
    is_first, is_last = where.tp == where.pp - PP + 1 == 0, where.pp == PP - 1
    back = ORIGIN if is_first else (CauseLink("arrival", 0),)
    first = _arrival(20, 1, 38, ORIGIN if is_first else ())
    if not is_last:
        channels.append(Channel.p2p(rank + stage, rank))
        first = _arrival(15, len(channels) - 1, 2)
    sent = tuple(_arrival(40 + number, 0, number, back) for number in range(LISTED - 1))
    passed = (Message(30, "send", 2, 2, "nan", "finite", None, back),) if where.pp else ()
    own = (first,) if is_first else ()
    return _trace(
        rank,
        tuple(channels),
        origins=(FOUND,) if is_first else (),
        arrivals=(first, *sent),
        departures=(*own, *passed, *sent),
    )


def _arrival(event: int, channel: int, number: int, causes: tuple[CauseLink, ...] = ()) -> Message:
    sent = "nan" if causes else "finite"
    return Message(event, "allreduce_", channel, number, sent, "nan", USED, causes)


def _trace(rank: int, channels: tuple[Channel, ...], **lists: tuple[object, ...]) -> RankTrace:
    sinks = tuple(
        Sink(
            tuple(f"{LAYER}.linear_fc{bucket}{weight}.weight" for weight in range(8)),
            "nan",
            (CauseLink("arrival", bucket),),
        )
        for bucket in range(len(lists["arrivals"]))
    )
    return RankTrace(
        rank=rank,
        coords=place(rank).label(SIZES),
        microbatch=2,
        channels=channels,
        sinks=sinks,
        num_events=5000,
        **lists,  # type: ignore[arg-type]
    )


def main() -> None:
    """Write the traces of one incident."""
    if len(sys.argv) < 2 or (sys.argv[2:] and sys.argv[2] not in SCENARIOS):
        sys.exit(f"usage: python scripts/many_traces.py DIR [{'|'.join(SCENARIOS)}]")
    scenario = sys.argv[2] if len(sys.argv) > 2 else "replica"
    print(f"{write(Path(sys.argv[1]), scenario) / 2**20:.0f} MiB in {sys.argv[1]}")


if __name__ == "__main__":
    main()
