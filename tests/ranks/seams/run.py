"""Script: train like `pretrain_gpt.py` with the faults that SEAMS names, see `when.py`; say at the end what acted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import megatron.training.training as host

from megatron_nanguard.cpurun import pretrain_gpt
from tests.ranks.seams import arithmetic, batch, device, functions, loss, memory, norm, state, wire
from tests.ranks.seams.when import acted, counted


def planted(train: Callable[..., Any]) -> Callable[..., Any]:
    """Plant in the second layer, then train."""

    def training(forward_step: Any, chunks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        layer = [module for module in chunks[0].modules() if hasattr(module, "self_attention")][1]
        arithmetic.plant(layer.mlp)
        memory.plant(layer.mlp)
        functions.plant(layer)
        wire.plant(layer.mlp)
        return train(forward_step, chunks, *args, **kwargs)

    return training


kernels = device.install()
for room in (batch, loss, memory, norm, state, wire):
    room.install()
host.train = planted(host.train)
pretrain_gpt.forward_step = counted(pretrain_gpt.forward_step)
pretrain_gpt.main()
print(f"rank {os.environ['RANK']} acted: {', '.join(sorted(acted)) or 'nothing'}", flush=True)
