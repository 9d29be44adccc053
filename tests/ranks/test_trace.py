"""Real faults in real operators, traced on every rank and compared with traces worked out by hand.

rank = tp + TP * (cp + CP * (dp + DP * pp)). Layout A: ranks 0 to 3 hold layers 0 and 1, ranks 4 to 7 layers 2 and 3;
ranks 4 and 5 share a layer, and 0 and 4 a pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from megatron_nanguard.records.json.record_file import from_json
from megatron_nanguard.records.trace import Message, OriginKind, RankTrace, TracedOrigin
from tests.import_server import Server
from tests.ranks.layouts import FP16, LAYOUTS, Layout

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("tracing.py")
FIRST_FAULTY_STEP = 1

Traces = Mapping[int, RankTrace]


class Planted(NamedTuple):
    """A fault, and the origin that must be found."""

    fault: str
    rank: int
    phase: str
    microbatch: int
    module: str
    operator: str
    pattern: str


def log(rank: int, layer: int, microbatch: int) -> Planted:
    return Planted(
        f"log:{rank}:{layer}:{microbatch}", rank, "forward", microbatch, f"decoder.layers.{layer}.mlp", "log", "nan"
    )


def backward(rank: int, layer: int, microbatch: int) -> Planted:
    return Planted(
        f"backward:{rank}:{layer}:{microbatch}",
        rank,
        "backward",
        microbatch,
        f"decoder.layers.{layer}.mlp",
        "log",
        "nan",
    )


def clamped_exp(rank: int, layer: int, microbatch: int, phase: str) -> Planted:
    return Planted(
        f"exp:{rank}:{layer}:{microbatch}", rank, phase, microbatch, f"decoder.layers.{layer}.mlp", "exp", "inf"
    )


PLANTED = {
    "A": (log(0, 1, 2), backward(5, 3, 2)),
    "AR": (clamped_exp(7, 2, 1, "recompute"), backward(6, 3, 0), log(0, 0, 2)),
    "B": (log(3, 1, 2), backward(2, 2, 1), backward(3, 1, 3)),
    "C": (log(1, 1, 2), backward(1, 2, 1)),
    "D1": (log(0, 1, 2), backward(0, 2, 1), clamped_exp(0, 3, 0, "forward")),
    "E": (log(1, 4, 1), backward(0, 0, 2)),
    "F": (backward(6, 3, 1), log(0, 0, 1)),
    "G": (log(6, 3, 1), backward(0, 1, 0), clamped_exp(5, 2, 1, "forward")),
    "H": (log(1, 1, 1), backward(6, 2, 0)),
}
HEALTHY_MASK = "mask:-:1:1"
"""On every rank, in layer 1: must yield nothing."""


class Traced(NamedTuple):
    """What a launch left behind.

    Attributes:
        steps: traces by rank, a step each, in the order of the faults; the last one is that of the healthy mask.
        exact: what was not bit for bit the same, per rank and traced pass.
    """

    steps: list[Traces]
    exact: list[list[list[str]]]


def traced_steps(ranks: Server, folder: Path, layout: Layout, faults: Sequence[str]) -> Traced:
    chosen = layout.plus("--train-iters", str(len(faults) + 1), "--no-check-for-nan-in-loss-and-grad")
    env = {"FAULTS": ";".join(faults), "TRACES_DIR": str(folder)}
    finished = ranks.run(layout.nproc, SCRIPT, chosen.args, env=env, cwd=folder)
    assert finished.code == 0, finished.out
    steps = [
        {rank: from_json(RankTrace, (folder / f"trace{step}_{rank}.json").read_bytes()) for rank in range(layout.nproc)}
        for step, _ in enumerate(faults, start=FIRST_FAULTY_STEP)
    ]
    return Traced(steps, [json.loads((folder / f"exact{rank}.json").read_text()) for rank in range(layout.nproc)])


@pytest.fixture(scope="module")
def traced(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Traced]:
    @cache
    def run(name: str) -> Traced:
        faults = [*(planted.fault for planted in PLANTED[name]), HEALTHY_MASK]
        return traced_steps(ranks, tmp_path_factory.mktemp(f"traces_{name}"), LAYOUTS[name], faults)

    return run


EVERY = [
    pytest.param(name, marks=() if name in ("A", "D1") else pytest.mark.long) for name in LAYOUTS if name in PLANTED
]


@pytest.mark.parametrize("name", EVERY)
def test_every_planted_fault_is_named_exactly_and_alone(traced: Callable[[str], Traced], name: str) -> None:
    for planted, step in zip(PLANTED[name], traced(name).steps, strict=False):
        assert not any(trace.broken for trace in step.values())
        origins = {rank: trace.origins for rank, trace in step.items() if trace.origins}
        assert list(origins) == [planted.rank]
        (origin,) = origins[planted.rank]
        assert described(planted.rank, origin) == planted._replace(fault="")
        assert origin.kind is OriginKind.OPERATOR
        assert origin.outputs[0].layout == "every element"
        assert origin.place.source_line is not None
        assert "tracing.py:" in origin.place.source_line


@pytest.mark.parametrize("name", EVERY)
def test_healthy_mask_yields_nothing_on_any_rank(traced: Callable[[str], Traced], name: str) -> None:
    for trace in traced(name).steps[-1].values():
        assert trace.broken == ""
        assert trace.origins == trace.arrivals == trace.departures == trace.sinks == ()


@pytest.mark.parametrize("name", EVERY)
def test_traced_passes_are_bit_exact(traced: Callable[[str], Traced], name: str) -> None:
    passes = 2 * (len(PLANTED[name]) + 1)
    assert traced(name).exact == [[[]] * passes] * LAYOUTS[name].nproc


@pytest.mark.parametrize("name", EVERY)
def test_every_bad_arrival_was_sent_by_another_rank_that_was_bad(traced: Callable[[str], Traced], name: str) -> None:
    for step in traced(name).steps:
        for rank, trace in step.items():
            for arrival in trace.arrivals:
                if arrival.sent == "finite":
                    assert senders(step, rank, arrival) - {rank}


def test_backward_fault_reaches_the_ranks_of_layout_a_one_after_the_other(traced: Callable[[str], Traced]) -> None:
    step = traced("A").steps[1]
    first = {rank: next(m for m in trace.arrivals if m.sent == "finite") for rank, trace in step.items() if rank != 5}
    # Through the tensor-parallel all-reduce, then backwards through the pipeline, then to the other replicas.
    assert {rank: (m.operator, step[rank].channels[m.channel].ranks) for rank, m in first.items()} == {
        4: ("allreduce_", (4, 5)),
        0: ("recv_", (4, 0)),
        1: ("recv_", (5, 1)),
        2: ("allreduce_coalesced_", (0, 2)),
        3: ("allreduce_coalesced_", (1, 3)),
        6: ("allreduce_coalesced_", (4, 6)),
        7: ("allreduce_coalesced_", (5, 7)),
    }
    assert {rank: senders(step, rank, m) for rank, m in first.items()} == {
        4: {5},
        0: {4},
        1: {5},
        2: {0},
        3: {1},
        6: {4},
        7: {5},
    }
    used = first[4].first_used
    assert used is not None
    assert (used.phase, used.microbatch) == ("backward", 2)


def test_forward_fault_of_the_first_stage_comes_back_through_the_last(traced: Callable[[str], Traced]) -> None:
    step = traced("A").steps[0]
    first = {rank: next(m for m in trace.arrivals if m.sent == "finite") for rank, trace in step.items() if rank}
    used = {rank: (m.operator, step[rank].channels[m.channel].ranks) for rank, m in first.items()}
    assert {rank: used[rank] for rank in (1, 4, 5)} == {
        4: ("recv_", (0, 4)),
        5: ("allreduce_", (4, 5)),
        1: ("recv_", (5, 1)),
    }
    assert any("loss of micro-batch 2" in sink.names for sink in step[4].sinks)


def test_last_stage_of_1f1b_in_fp16_has_no_origin_of_its_own(ranks: Server, tmp_path: Path) -> None:
    # It scales the memory that stands for its output once that is deallocated; under the marker that is a NaN.
    layout = LAYOUTS["D2"].plus(
        *("--pipeline-model-parallel-size", "2", "--global-batch-size", "8", *FP16, "--initial-loss-scale", "1024")
    )
    fault, healthy = traced_steps(ranks, tmp_path, layout, (backward(0, 1, 2).fault, "marker:-:0:1")).steps
    assert {rank: [origin.operator for origin in trace.origins] for rank, trace in fault.items()} == {0: ["log"], 1: []}
    assert healthy[1].num_contained, "it was seen, and nothing leads back to it"
    for trace in healthy.values():
        assert trace.broken == ""
        assert trace.origins == trace.arrivals == trace.departures == trace.sinks == ()


def described(rank: int, origin: TracedOrigin) -> Planted:
    place = origin.place
    assert place.microbatch is not None
    return Planted("", rank, place.phase, place.microbatch, place.module, origin.operator, origin.outputs[0].pattern)


def senders(step: Traces, receiver: int, arrival: Message) -> set[int]:
    """The ranks that sent something bad in this message."""
    channel = step[receiver].channels[arrival.channel]
    return {
        rank
        for rank, trace in step.items()
        for message in trace.departures
        if (trace.channels[message.channel], message.number) == (channel, arrival.number)
    }
