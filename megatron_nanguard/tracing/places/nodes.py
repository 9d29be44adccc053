"""Autograd nodes: where in the forward each was created, and names for the gradients that it returns."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch.autograd import graph
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import Node

from megatron_nanguard.tracing.places.step_place import ForwardPlace

_KEY: Final = "megatron_nanguard"
ACCUMULATE: Final = "AccumulateGrad"


class TaggedNodes:
    """Write the place into each node when it is created; exact in every thread."""

    def __init__(
        self,
        here: Callable[[Node], ForwardPlace | None],
        on_node: Callable[[Node], None],
        shielded: Callable[..., None],
    ) -> None:
        self._here, self._on_node, self._shielded = here, on_node, shielded

    def recording(self) -> AbstractContextManager[object]:
        """Hook the creation of nodes; the threads of the autograd engine inherit the hook."""
        return graph.node_creation_hook(partial(self._shielded, self._tag))

    def note(self) -> None:
        """Do nothing: the hook has written the place already."""

    def forward_place(self, node: Node) -> ForwardPlace | None:
        """Read the place from the node."""
        place: ForwardPlace | None = _metadata(node).get(_KEY)
        return place

    def _tag(self, node: Node) -> None:
        place = self._here(node)
        if place is not None:
            _metadata(node)[_KEY] = place
        self._on_node(node)


class NumberedNodes:
    """Know nodes by the sequence number of autograd, for a torch without `node_creation_hook`; it counts per thread."""

    def __init__(self, here: Callable[[], ForwardPlace | None]) -> None:
        self._here = here
        self._next: dict[int, int] = {threading.get_ident(): _next_number()}
        self._places: dict[int, dict[int, ForwardPlace]] = {}

    def recording(self) -> AbstractContextManager[object]:
        """Do nothing: there is no hook."""
        return nullcontext()

    def note(self) -> None:
        """Assign the numbers that this thread used since the last call to the place that was current until now."""
        thread, upto = threading.get_ident(), _next_number()
        first = self._next.get(thread, 0)
        if first == upto:
            return
        self._next[thread] = upto
        place = self._here()
        if place is not None:
            for number in range(first, upto):
                self._places.setdefault(number, {})[thread] = place

    def forward_place(self, node: Node) -> ForwardPlace | None:
        """Look the number up: if several threads have used it, this thread's node is meant."""
        by_thread = self._places.get(node._sequence_nr(), {})
        if len(by_thread) == 1:
            return next(iter(by_thread.values()))
        return by_thread.get(threading.get_ident())


Nodes = TaggedNodes | NumberedNodes
"""Knows where in the forward each node was created; None for a node from before the trace."""


def _next_number() -> int:
    return torch._C._autograd._get_sequence_nr()


def _metadata(node: Any) -> dict[str, Any]:
    """The dictionary of a node: at run time an attribute, though torch's stubs declare a method."""
    metadata: dict[str, Any] = node.metadata
    return metadata


def can_tag_nodes() -> bool:
    """Whether this torch can call a hook when a node is created."""
    return hasattr(graph, "node_creation_hook")


def is_accumulation(node: Node) -> bool:
    """Whether the node adds a gradient into a leaf."""
    return node.name().endswith(ACCUMULATE)


def short_name(node: Node) -> str:
    """Name of a node without its C++ namespace."""
    return node.name().rpartition("::")[2]


def cpp_function_name(node: Node) -> str:
    """Name of the autograd Function written in C++ whose backward a node runs; empty for other nodes."""
    _, found, name = node.name().rpartition("CppNode<")
    return name.rstrip(">").rpartition("::")[2] if found else ""


def argument_names(function: Any) -> list[str]:
    """Names of the positional arguments of a function; none where its signature cannot be read."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def gradient_names(function: Any) -> list[str]:
    """Name the gradients that the backward of an autograd.Function returns, after the arguments of its forward.

    The gradients of `attend(ctx, q, k, v)` are named "grad of q", "grad of k" and "grad of v", whatever the backward
    calls them.
    """
    has_context = function.setup_context is _SingleLevelFunction.setup_context
    return [f"grad of {name}" for name in argument_names(function.forward)[int(has_context) :]]
