"""Find where gradients leave a module: the edges of the autograd graph from its own nodes to what made its inputs.

A hook on an input tensor would see the sum of the gradients of all modules that read it. A full backward hook inserts
a node into the graph, which can change the order of additions and so the last bit. A hook on the nodes at the border
of the module sees the module's share alone and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

Edge = tuple[Node, int]
"""A node and the number of its input."""


def edges_of(inputs: Mapping[str, Tensor]) -> dict[Edge, str]:
    """Name the edge behind each input that requires grad; before the forward, which may change inputs in place."""
    edges: dict[Edge, str] = {}
    for name, tensor in inputs.items():
        if tensor.requires_grad:
            edge = get_gradient_edge(tensor)
            edges.setdefault((edge.node, edge.output_nr), name)
    return edges


def border_nodes(outputs: Iterable[Tensor], inputs: Mapping[Edge, str], began: int) -> dict[Node, dict[int, str]]:
    """Find the border nodes: those nodes of the module whose gradients go to its inputs.

    Args:
        outputs: of the module.
        inputs: from `edges_of`.
        began: autograd's sequence number when the module was entered; nodes with a lower one are not the module's.
    Returns:
        By node: position of the gradient among those it computes -> name of the input.
    """
    found: dict[Node, dict[int, str]] = {}
    ahead = [(o.grad_fn, o.output_nr) for o in outputs if o.grad_fn is not None]
    todo = [node for node, number in ahead if (node, number) not in inputs]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen or node._sequence_nr() < began:
            continue
        seen.add(node)
        for position, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            if (following, number) in inputs:
                found.setdefault(node, {})[position] = inputs[following, number]
            else:
                todo.append(following)
    return found
