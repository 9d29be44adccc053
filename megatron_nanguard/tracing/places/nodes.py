"""Where an autograd node was made: the module, operator and source line that a node of the backward belongs to."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch.autograd import graph
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import Node

from megatron_nanguard.tracing.places.step_place import ForwardPlace

_KEY: Final = "megatron_nanguard"
ACCUMULATE: Final = "AccumulateGrad"


class Nodes(Protocol):
    """Finds where the running node was made."""

    def recording(self) -> AbstractContextManager[Any]:
        """Around everything that makes or runs nodes."""

    def note(self) -> None:
        """Give the nodes made since the last call to the place that was current until now."""

    def made(self, node: Node) -> ForwardPlace | None:
        """Where the node was made; None when it was made before the trace, or cannot be told."""


class TaggedNodes:
    """Every node carries its place, written into it when it is made; exact in every thread."""

    def __init__(
        self,
        here: Callable[[Node], ForwardPlace | None],
        on_node: Callable[[Node], None],
        shielded: Callable[..., Any],
    ) -> None:
        self._here, self._on_node, self._shielded = here, on_node, shielded

    def recording(self) -> AbstractContextManager[Any]:
        """Hook the making of nodes; engine threads inherit it."""
        return graph.node_creation_hook(partial(self._shielded, self._tag))

    def note(self) -> None:
        """Nothing: a node is noted when it is made."""

    def made(self, node: Node) -> ForwardPlace | None:
        """Read the tag."""
        made: ForwardPlace | None = _metadata(node).get(_KEY)
        return made

    def _tag(self, node: Node) -> None:
        made = self._here(node)
        if made is not None:
            _metadata(node)[_KEY] = made
        self._on_node(node)


class NumberedNodes:
    """For a torch without a hook on making nodes: by autograd's running number, which counts per thread."""

    def __init__(self, here: Callable[[], ForwardPlace | None]) -> None:
        self._here = here
        self._next: dict[int, int] = {threading.get_ident(): _next_number()}
        self._made: dict[int, dict[int, ForwardPlace]] = {}

    def recording(self) -> AbstractContextManager[Any]:
        """Nothing to hook."""
        return nullcontext()

    def note(self) -> None:
        """Numbers handed out since the last look in this thread belong to the place current until now."""
        thread, upto = threading.get_ident(), _next_number()
        first = self._next.get(thread, 0)
        if first == upto:
            return
        self._next[thread] = upto
        made = self._here()
        if made is not None:
            for number in range(first, upto):
                self._made.setdefault(number, {})[thread] = made

    def made(self, node: Node) -> ForwardPlace | None:
        """Look the number up: in this thread first, else in the only one that made it."""
        by_thread = self._made.get(node._sequence_nr(), {})
        if len(by_thread) == 1:
            return next(iter(by_thread.values()))
        return by_thread.get(threading.get_ident())


def _next_number() -> int:
    return torch._C._autograd._get_sequence_nr()


def _metadata(node: Any) -> dict[str, Any]:
    """The node's own dictionary: an attribute, though torch's types call it a method."""
    metadata: dict[str, Any] = node.metadata
    return metadata


def can_tag_nodes() -> bool:
    """Whether this torch calls a hook when a node is made."""
    return hasattr(graph, "node_creation_hook")


def is_accumulation(node: Node) -> bool:
    """Whether the node adds a gradient into a leaf."""
    return node.name().endswith(ACCUMULATE)


def short_name(node: Node) -> str:
    """Name of a node without its C++ namespace."""
    return node.name().rpartition("::")[2]


def is_autograd_function(node: Node) -> bool:
    """Whether the node runs the backward of an autograd.Function written in Python."""
    return hasattr(node, "_forward_cls")


def gradient_names(node: Any) -> list[str]:
    """Name each gradient that the running node hands on, in the order in which a hook on the node gets them.

    A hook gets one per tensor argument; which arguments those are shows only in those that want a gradient.
    """
    arguments = _argument_names(node._forward_cls)
    wanted = iter([index for index, wants in enumerate(node.needs_input_grad) if wants])
    names = []
    for position, (following, _) in enumerate(node.next_functions):
        argument = next(wanted, None) if following is not None else None
        if argument is None:
            names.append(str(position))
        else:
            names.append(f"grad of {arguments[argument] if argument < len(arguments) else argument}")
    return names


def _argument_names(function: Any) -> list[str]:
    """Names of the forward's positional arguments, the context left out."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(function.forward).parameters.values() if p.kind in kinds]
    has_context = function.setup_context is _SingleLevelFunction.setup_context
    return names[1:] if has_context else names
