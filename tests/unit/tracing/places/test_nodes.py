"""Nodes by number, where torch has no hook on making them: numbers count per thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.autograd.graph import Node

from megatron_nanguard.tracing.places.nodes import NumberedNodes, is_accumulation, short_name
from megatron_nanguard.tracing.places.step_place import ForwardPlace, Step


class Here:
    """Says where we are."""

    def __init__(self) -> None:
        self.module = ""

    def __call__(self) -> ForwardPlace:
        return ForwardPlace(self.module, Step(), "", None)


def made_in_threads(nodes: NumberedNodes, here: Here, modules: list[str]) -> list[Node]:
    """The first node that each of several living threads makes, in a module of its own."""
    made: list[Node] = []

    def make(module: str) -> None:
        here.module = module
        made.append((torch.ones(1, requires_grad=True) * 2).grad_fn)
        nodes.note()

    # One worker at a time, and none of them ends before the last: the number of a dead thread is given out again.
    pools = [ThreadPoolExecutor(1) for _ in modules]
    for pool, module in zip(pools, modules, strict=True):
        pool.submit(make, module).result()
    for pool in pools:
        pool.shutdown()
    return made


def test_number_of_one_thread_is_found_from_another() -> None:
    here = Here()
    nodes = NumberedNodes(here)
    (node,) = made_in_threads(nodes, here, ["mlp"])
    made = nodes.made(node)
    assert made is not None
    assert made.module == "mlp"


def test_number_that_two_other_threads_made_cannot_be_told() -> None:
    here = Here()
    nodes = NumberedNodes(here)
    first, second = made_in_threads(nodes, here, ["mlp", "attention"])
    assert first._sequence_nr() == second._sequence_nr()
    assert nodes.made(first) is None


def test_names() -> None:
    node = (torch.ones(1, requires_grad=True) * 2).grad_fn
    assert short_name(node) == "MulBackward0"
    leaf = node.next_functions[0][0]
    assert short_name(leaf) == "AccumulateGrad"
    assert (is_accumulation(node), is_accumulation(leaf)) == (False, True)
