"""Add our options to the command line of any Megatron pretrain script."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper


def make_wrapper(add_options: Callable[[ArgumentParser], None]) -> Wrapper:
    """``add_options(parser)`` is called with the parser that Megatron goes on to use."""

    def _add_training_args(wrapped: Wrapped, instance: None, args: Args, kwargs: Kwargs) -> object:
        parser = wrapped(*args, **kwargs)
        add_options(parser)
        return parser

    return _add_training_args


POINT = PatchPoint(
    name="options",
    group="options",
    targets=(Target("megatron.training.arguments:_add_training_args", parameters=("parser",)),),
    why="every release calls it once per parser and looks it up by name at that moment; no module holds a copy",
    lost="--nanguard on the command line; the NANGUARD_* environment variables still work",
    make_wrapper=make_wrapper,
)
