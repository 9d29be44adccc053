"""Delayed scaling of float8 casts: state in each module, global buffers and a reduction that knows no module.

A cast uses the scale of earlier steps, and raises the newest entry of its history. When the model's forward ends, and
when the backward of the first module does, the newest entries of all modules are reduced over a group, the histories
roll on and the scales follow.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/quantization.py, FP8GlobalStateManager
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.opaque.float8 import Float8Quantizer

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
HISTORY = 4
INDEX = "global_fp8_buffer_pos"
KEYS = {True: "scaling_fwd", False: "scaling_bwd"}


class DelayedScalingState:
    """Scales and histories of one module's forward or backward.

    Attributes:
        scale: float32 [slots].
        amax_history: float32 [HISTORY, slots], the newest first.
    """

    def __init__(self, slots: int, format: str, device: Any) -> None:
        self.format = format
        self.scale = torch.ones(slots, dtype=torch.float32, device=device)
        self.amax_history = torch.zeros(HISTORY, slots, dtype=torch.float32, device=device)

    def quantizer(self, slot: int) -> Float8Quantizer:
        """A cast with the state of one slot."""
        return Float8Quantizer(self.scale[slot : slot + 1], self.amax_history[0][slot : slot + 1], self.format)


@dataclass
class GlobalState:
    """Mutable state of the process."""

    fp8_enabled: bool = False
    is_first_fp8_module: bool = False
    autocast_depth: int = 0
    fp8_group: Any = None
    global_amax_buffer: dict[str, list[Tensor]] = field(default_factory=dict)
    global_amax_history_buffer: dict[str, list[Tensor]] = field(default_factory=dict)
    global_scale_buffer: dict[str, list[Tensor]] = field(default_factory=dict)


class GlobalStateManager:
    """Keeps the state, and changes it."""

    quantization_state = GlobalState()

    @classmethod
    def add_to_global_buffer(cls, fp8_meta: dict[str, Any]) -> None:
        """Take part in the reductions; a module does so once."""
        if INDEX in fp8_meta:
            return
        state = cls.quantization_state
        for key in KEYS.values():
            own = fp8_meta[key]
            state.global_amax_buffer.setdefault(key, []).append(own.amax_history[0])
            state.global_amax_history_buffer.setdefault(key, []).append(own.amax_history)
            state.global_scale_buffer.setdefault(key, []).append(own.scale)
        fp8_meta[INDEX] = len(state.global_scale_buffer[KEYS[True]]) - 1

    @classmethod
    def is_first_module(cls) -> bool:
        """True the first time that it is asked inside of a context."""
        is_first = cls.quantization_state.is_first_fp8_module
        cls.quantization_state.is_first_fp8_module = False
        return is_first

    @classmethod
    def autocast_enter(cls) -> None:
        """Begin of the model's forward."""
        state = cls.quantization_state
        state.fp8_enabled = True
        if state.autocast_depth == 0:
            state.is_first_fp8_module = True
        state.autocast_depth += 1

    @classmethod
    def autocast_exit(cls) -> None:
        """End of the model's forward.

        Collective: the group of the reductions, at the outermost exit.
        """
        state = cls.quantization_state
        state.autocast_depth -= 1
        if state.autocast_depth == 0:
            state.fp8_enabled = False
            if torch.is_grad_enabled():
                cls.reduce_and_update(forward=True)

    @classmethod
    def reduce_and_update(cls, forward: bool) -> None:
        """Reduce the newest entries, roll the histories and compute the scales.

        Collective: the group of the reductions.
        """
        state, key = cls.quantization_state, KEYS[forward]
        newest = state.global_amax_buffer.get(key, [])
        if not newest:
            return
        together = torch.cat(newest)
        if state.fp8_group is not None and state.fp8_group.size() > 1:
            dist.all_reduce(together, op=dist.ReduceOp.MAX, group=state.fp8_group)
        parts = together.split([own.numel() for own in newest])
        largest = LARGEST["e4m3" if forward else "e5m2"]
        for part, history, scale in zip(
            parts, state.global_amax_history_buffer[key], state.global_scale_buffer[key], strict=True
        ):
            history[0].copy_(part)
            _roll_and_scale(history, scale, largest)


def _roll_and_scale(history: Tensor, scale: Tensor, largest: float) -> None:
    """The scale is the largest value of the format by the largest one of the history; the newest entry starts at 0."""
    amax = history.amax(0)
    history.copy_(torch.roll(history, -1, 0))
    history[0].fill_(0.0)
    scaled = largest / amax
    scale.copy_(torch.where((amax > 0) & amax.isfinite() & scaled.isfinite(), scaled, scale))


def cast_in(chunk: Any, group: Any) -> None:
    """Let the forward of a model chunk be a context of delayed scaling.

    Args:
        chunk: as it is trained; its first micro-batch casts the weights anew, as Megatron asks for with its own option.
        group: over which the largest values are reduced.
    Source: megatron/core/transformer/module.py, MegatronModule.set_is_first_microbatch
    """
    GlobalStateManager.quantization_state.fp8_group = group
    chunk.register_forward_pre_hook(lambda *args: GlobalStateManager.autocast_enter())
    chunk.register_forward_hook(lambda *args: GlobalStateManager.autocast_exit())

    def set_is_first_microbatch() -> None:
        for module in chunk.modules():
            if hasattr(module, "is_first_microbatch"):
                module.is_first_microbatch = True

    chunk.set_is_first_microbatch = set_is_first_microbatch
