"""Saves seconds in every rank; results do not change."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function


def fork_the_checkpoint_queue(changes: ChangedAttributes, filesystem_async: ModuleType) -> None:
    """Fork the process that owns the checkpoint writer's queue.

    With "spawn" it imports the script and Megatron once more for every rank: over a minute at the first save.

    Source: megatron/core/dist_checkpointing/strategies/filesystem_async.py, get_write_results_queue
    """
    if hasattr(filesystem_async, "get_write_results_queue"):
        changes.wrap(
            filesystem_async, "get_write_results_queue", lambda original: lambda mp_mode="fork": original("fork")
        )


def keep_help_texts(changes: ChangedAttributes, argument_utils: ModuleType) -> None:
    """Parse the help texts of Megatron's arguments once, not twice in every rank.

    Source: megatron/training/argument_utils.py, ArgumentGroupFactory
    """
    factory = getattr(argument_utils, "ArgumentGroupFactory", None)
    if hasattr(factory, "_get_field_docstrings"):
        changes.wrap(factory, "_get_field_docstrings", _cached)
        arguments: Any = sys.modules.get("megatron.training.arguments")
        if hasattr(arguments, "add_megatron_arguments"):
            arguments.add_megatron_arguments(argparse.ArgumentParser())  # fills the cache before the ranks are forked


def _cached(original: Function) -> Function:
    known: dict[Any, dict[str, str]] = {}

    def field_docstrings(self: Any, config_class: Any) -> dict[str, str]:
        if config_class not in known:
            known[config_class] = original(self, config_class)
        return dict(known[config_class])

    return field_docstrings
