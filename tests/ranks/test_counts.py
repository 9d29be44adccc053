"""What a healthy step costs, counted: one collective and one host read more than stock."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.import_server import Server
from tests.ranks.conftest import EndStates, Run
from tests.ranks.layouts import LAYOUTS

pytestmark = pytest.mark.ranks

ALWAYS = ("A", "C", "D1")
THE_VOTE = Counter({"c10d::allreduce_": 1, "Tensor.cpu": 1})
"""All that the guard adds to a step, and that outside of any backward pass."""


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in LAYOUTS]
)
def test_a_healthy_step_takes_one_collective_and_one_host_read_more(end_states: EndStates, layout: str) -> None:
    assert_the_vote_is_all(*end_states(layout))


def test_a_reduction_inside_the_backward_pass_is_looked_at_without_asking(end_states: EndStates) -> None:
    stock, guarded = end_states("D2", "--overlap-grad-reduce")

    # In the first step Megatron learns the order of the buckets, and reduces after the pass.
    in_the_pass = [step.get("backward c10d::allreduce_coalesced_", 0) for step in stock.ranks[0]["operators"]]
    assert in_the_pass == [0, 1, 1]
    assert_the_vote_is_all(stock, guarded)


def assert_the_vote_is_all(stock: Run, guarded: Run) -> None:
    for plain, watched in zip(stock.ranks, guarded.ranks, strict=True):
        assert len(plain["operators"]) == len(watched["operators"]) == 3
        for before, after in zip(plain["operators"], watched["operators"], strict=True):
            assert Counter(after) - Counter(before) == THE_VOTE
            assert Counter(before) - Counter(after) == Counter()
        added = zip(plain["collectives"], watched["collectives"], strict=True)
        assert [after - before for before, after in added] == [1, 1, 1]


KNOWN_STEPS = """
import json, torch, torch.distributed as dist
from tests.ranks.counting import Counting

dist.init_process_group("gloo")
counting = Counting()
with counting:
    dist.all_reduce(torch.ones(1))
    counting.step_begins()
    leaf = torch.ones(2, device="cuda", requires_grad=True)
    leaf.register_hook(lambda grad: (grad.sum().item(), dist.all_reduce(grad))[0] and None)
    (leaf * 2).sum().backward()
    counting.step_begins()
    leaf.detach().cpu().tolist()
    bool(leaf.detach().to("cpu").sum() > 0)
    leaf.detach()[leaf.detach() > 0].to(leaf.device)
    float(leaf.detach()[0])
    counting.step_ends()
with open("counted.json", "w") as file:
    json.dump([counting.steps, counting.collectives], file)
"""


def test_the_counting_sees_reads_and_collectives_where_they_happen(ranks: Server, tmp_path: Path) -> None:
    script = tmp_path / "known_steps.py"
    script.write_text(KNOWN_STEPS, encoding="utf-8")

    finished = ranks.run(1, script, cwd=tmp_path)

    assert finished.code == 0, finished.out
    steps, collectives = json.loads((tmp_path / "counted.json").read_text())
    in_hook = {"backward aten::_local_scalar_dense": 1, "backward c10d::allreduce_": 1}
    # A sum over a copy on the host is a new tensor to the counting, so reading that one counts as well.
    plain = {"Tensor.cpu": 1, "Tensor.to": 1, "aten::_local_scalar_dense": 2, "aten::index": 1}
    assert steps == [in_hook, plain]
    assert collectives == [1, 0]
