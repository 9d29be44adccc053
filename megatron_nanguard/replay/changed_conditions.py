"""Replays under changed conditions. A fault that is gone under one of them has the cause that it rules out.

They come after the plain and the traced replay: a change of timing can hide a race, and these change it most.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api.model_chunks import changed_config
from megatron_nanguard.megatron_api.protocols import ModelChunk

SYNCHRONOUS = "synchronous"
LOWER_SCALE = "loss scale / 256"


class Synchronous(TorchDispatchMode):
    """Let the host wait after every operator, so that no two kernels, copies or streams overlap.

    ``replay(call, Synchronous(device))``. A fault that is gone under it is a race.

    Sync: after every operator.
    """

    supports_higher_order_operators = True

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled helpers compiled: run eagerly they would give other bits."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self._device.synchronize()
        return returned


def lower_scale(chunks: Sequence[ModelChunk], factor: float = 1 / 256) -> AbstractContextManager[None]:
    """Scale the loss by a smaller factor than the loss scaler gives: ``replay(call, lower_scale(chunks))``.

    Gradients that are finite then overflowed only because of the scale, which is for the loss scaler to handle.

    Source: megatron/core/pipeline_parallel/schedules.py: ``config.grad_scale_func`` in forward and backward steps
    """
    return changed_config(chunks, "grad_scale_func", lambda scale: scale and (lambda loss: scale(loss) * factor))
