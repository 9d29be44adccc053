"""Replaces functions of Megatron that need Transformer Engine, Apex, a source tree or a fresh process.

Applied after the import of Megatron, before the ranks are forked. A stand-in skips a release that lacks its function.
"""

from __future__ import annotations

import sys
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.stand_ins.context_parallel import teach_context_parallel
from megatron_nanguard.cpurun.stand_ins.dataset_helpers import use_compiled_helpers
from megatron_nanguard.cpurun.stand_ins.loading_adam import let_adam_be_loaded
from megatron_nanguard.cpurun.stand_ins.sequence_parallel_norm import allow_sequence_parallel
from megatron_nanguard.cpurun.stand_ins.start_up import fork_the_checkpoint_queue, keep_help_texts

# module of Megatron, stand-in that changes it
STAND_INS = (
    ("megatron.core.datasets.utils", use_compiled_helpers),
    ("megatron.core.transformer.torch_norm", allow_sequence_parallel),
    ("megatron.core.transformer.dot_product_attention", teach_context_parallel),
    ("megatron.core.optimizer.distrib_optimizer", let_adam_be_loaded),
    ("megatron.core.dist_checkpointing.strategies.filesystem_async", fork_the_checkpoint_queue),
    ("megatron.training.argument_utils", keep_help_texts),
)

changed = ChangedAttributes()
_applied: set[Any] = set()


def after_import() -> None:
    """Apply every stand-in whose module has been imported; a later call adds the ones imported since."""
    for name, stand_in in STAND_INS:
        module = sys.modules.get(name)
        if module is not None and stand_in not in _applied:
            stand_in(changed, module)
            _applied.add(stand_in)


def restore() -> None:
    """Restore Megatron's functions."""
    changed.restore()
    _applied.clear()
