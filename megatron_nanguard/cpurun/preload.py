"""Modules that are imported once, before the ranks are forked."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from megatron_nanguard.cpurun.errors import LaunchRefused

PRELOAD = (
    "megatron.training",
    "megatron.training.training",
    "megatron.training.arguments",
    "megatron.training.argument_utils",
    "megatron.training.checkpointing",
    "megatron.training.models.gpt",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.moe_module_specs",
    "megatron.core.models.mimo.model.base",
    "megatron.core.datasets.gpt_dataset",
    "megatron.core.datasets.blended_megatron_dataset_builder",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
    "megatron.core.tokenizers.utils.build_tokenizer",
    "megatron.core.tokenizers.text.text_tokenizer",
    "megatron.core.tokenizers.text.models.bert_tokenizer",
    "megatron.core.tokenizers.text.models.default_tokenizer",
    "megatron.core.tokenizers.text.models.gpt_tokenizer",
    "megatron.core.tokenizers.text.models.mamba_tokenizer",
    "megatron.core.tokenizers.text.models.t5_tokenizer",
    "megatron.core.dist_checkpointing.strategies.torch",
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    "torch._dynamo",  # torch.optim imports it at the first add_param_group: seconds, in every rank
)


def preload(names: Sequence[str] = PRELOAD) -> None:
    """Import the modules without their warnings, and apply the stand-ins.

    A module that this release of Megatron does not have is skipped; any other error of an import is raised.
    """
    from megatron_nanguard.cpurun.stand_ins import after_import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            _import_if_there(name)
    after_import()


def _import_if_there(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if not (missing.name and f"{name}.".startswith(f"{missing.name}.")):
            raise


def refuse_threads() -> None:
    """Refuse to fork a process with several threads: the others are not copied, and their locks stay taken.

    Raises:
        LaunchRefused: There are more threads than this one.
    """
    tasks = Path("/proc/self/task")
    count = len(os.listdir(tasks)) if tasks.is_dir() else 1
    if count > 1:
        raise LaunchRefused(
            f"{count} threads after the import, 1 expected before ranks are forked: set OMP_NUM_THREADS=1 "
            f"(now {os.environ.get('OMP_NUM_THREADS', 'unset')!r}) or use torchrun -m megatron_nanguard --cpu "
            f"{Path(sys.argv[0]).name}"
        )
