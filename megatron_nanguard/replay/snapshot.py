"""What a schedule call changes beside the gradients, kept so that it can be put back.

random states, module buffers, scales of float8 casts, sums for the log, bucket groups, rerun machine, timers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api import bucket_state, process_state
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.sentinel.random_states import RngStates

PutBack = Callable[[], None]


@dataclass(frozen=True, eq=False)
class KeptBuffer:
    """A buffer of a module. Both the tensor object and its content are kept, since a forward may change either.

    Attributes:
        module: the module.
        name: of the buffer in that module.
        buffer: the tensor object that was there.
        content: a copy of its content.
    """

    module: Module
    name: str
    buffer: Tensor | None
    content: Tensor | None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state at one moment.

    Attributes:
        random: the random states.
        buffers: of all modules.
        parts: a function per part, by its name, that puts the part back; can be called several times.
    """

    random: RngStates
    buffers: tuple[KeptBuffer, ...]
    parts: dict[str, PutBack]

    @classmethod
    def capture(cls, chunks: Sequence[ModelChunk], device: Device) -> Snapshot:
        """Take the state now.

        Sync: none; on the device only module buffers, scales and a few sums for the log are cloned.
        """
        random = RngStates.now(device)
        buffers = tuple(
            KeptBuffer(module, name, buffer, None if buffer is None else buffer.detach().clone())
            for chunk in chunks
            for module in chunk.modules()
            for name, buffer in module._buffers.items()
        )

        def put_back_buffers() -> None:
            for kept in buffers:
                kept.module._buffers[kept.name] = kept.buffer
                if kept.buffer is not None and kept.content is not None:
                    kept.buffer.detach().copy_(kept.content)

        parts = {
            **random.put_back(device),
            "buffers": put_back_buffers,
            "scales": keep_scales(chunks),
            "accumulators": process_state.keep_accumulators(),
            "buckets": bucket_state.keep(chunks),
            "rerun": process_state.keep_rerun_machine(),
            "timers": process_state.keep_timers(),
        }
        return cls(random, buffers, parts)

    def restore(self, *names: str) -> None:
        """Put the named parts back; all of them when none is named."""
        for name, put_back in self.parts.items():
            if not names or name in names:
                put_back()


def keep_scales(chunks: Sequence[ModelChunk]) -> PutBack:
    """Keep the state of delayed scaling, and return what puts it back.

    Its global buffers hold the same tensors. Weights that were cast for later micro-batches are cast anew in the first
    one of a replay. A module whose state is made in this very step has none to go back to.

    Sync: none; one copy of all tensors together.
    """
    tensors = list({id(tensor): tensor for tensor in _scales(chunks)}.values())
    kept = [torch.empty_like(tensor) for tensor in tensors]
    if tensors:
        torch._foreach_copy_(kept, tensors)

    def put_back() -> None:
        if tensors:
            torch._foreach_copy_(tensors, kept)

    return put_back


def _scales(chunks: Sequence[ModelChunk]) -> Iterator[Tensor]:
    """Yield histories of largest values and the scales that follow from them.

    Source: transformer_engine/pytorch/module/base.py, TransformerEngineBaseModule.fp8_meta
    """
    for chunk in chunks:
        for module in chunk.modules():
            meta = vars(module).get("fp8_meta")
            for state in meta.values() if isinstance(meta, dict) else ():
                held = (state, *vars(state).values()) if hasattr(state, "__dict__") else (state,)
                yield from (tensor for tensor in held if isinstance(tensor, Tensor))
