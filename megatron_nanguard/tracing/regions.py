"""An autograd.Function stands for a kernel: the outputs of its backward are named after the forward's arguments.

Position j of what a backward returns belongs to argument j of the forward, so the gradients of `attend(ctx, q, k, v)`
are the gradients of q, k and v whatever the kernel calls them.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import Node


def is_region(node: Node) -> bool:
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
