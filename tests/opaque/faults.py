"""Kernels that go wrong: they write NaN into what they make, where no patch of the tool is.

OPAQUE_FAULT is "step=3,rank=1,layer=1,microbatch=2,region=linear_fc1,part=bwd;...". Steps count from 1; micro-batches
and layers count from 0, layers over the whole model. A region is the last name of its module, or that of its Function
(rope, permute, unpermute, sort_chunks), which takes "call=1" for its second call in a layer. A part is fwd, recompute
(the second forward alone), bwd, wgrad, or dgrad (in a norm with a linear layer: the product, before it is reduced).

A kernel is faulty in a micro-batch, however often that is computed: in a replay as well, and in a recomputed forward as
in the first one. With OPAQUE_TWIN set the same elements are written over with what they are. When training ends every
rank prints what has acted.
"""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import megatron.training.training as host
import torch
from torch import Tensor
from torch.nn import Module

from tests.opaque import kernels
from tests.ranks.microbatches import Forwards, is_in_backward

ELEMENTS = 3
"""How many values are bad, one after the other."""

has_acted: Counter[str] = Counter()


@dataclass(frozen=True)
class Fault:
    """One kernel that is wrong in one micro-batch."""

    text: str
    step: int
    rank: int
    layer: int
    microbatch: int
    region: str
    part: str
    call: int = 0

    @classmethod
    def parse(cls, text: str) -> Fault:
        """From "step=3,rank=1,..."."""
        given = dict(word.split("=") for word in text.split(","))
        numbers = {key: int(value) for key, value in given.items() if key not in ("region", "part")}
        return cls(text, region=given["region"], part=given["part"], **numbers)


def planned() -> list[Fault]:
    """Faults of this rank."""
    every = map(Fault.parse, filter(None, os.environ.get("OPAQUE_FAULT", "").split(";")))
    return [fault for fault in every if fault.rank == int(os.environ["RANK"])]


def strike(due: str, part: str, tensor: Tensor) -> None:
    """Spoil an output of a kernel, if this is the part that is due.

    Args:
        due: what `Seam.due` has given for this call; plain text, so that the call can be copied and saved with it.
        part: fwd, bwd, dgrad or wgrad.
        tensor: contiguous; a part of its second row is overwritten, of a weight's gradient the first.
    """
    if f"part={part}" in due or (part == "fwd" and "part=recompute" in due):
        row = 0 if part == "wgrad" or tensor.shape[0] < 2 else 1
        kernels.spoil(tensor, row * tensor.stride(0), ELEMENTS, None if "OPAQUE_TWIN" in os.environ else math.nan)
        has_acted[due] += 1


# When ---------------------------------------------------------------------------------------------------------------


class Layer:
    """The layer that runs, for Functions that are called outside of any module of their own."""

    running: Layer | None = None

    def __init__(self, module: Module, forwards: Forwards) -> None:
        self.number: int = module.layer_number - 1  # type: ignore[operator, assignment]
        self.forwards = forwards
        self.seams: dict[str, Seam] = {}
        self.calls: Counter[str] = Counter()
        module.register_forward_pre_hook(self._begins)

    def _begins(self, module: Module, args: Any) -> None:
        Layer.running = self
        self.calls.clear()

    def seam(self, region: str) -> Seam:
        """The place of a region; a region that is called again in the same forward has another one."""
        call = self.calls[region]
        self.calls[region] += 1
        return self.seams.setdefault(f"{region} {call}", Seam(self, region, call))


class Seam:
    """Where a kernel is called from: one region of one layer."""

    def __init__(self, layer: Layer, region: str, call: int = 0) -> None:
        self.layer = layer
        self.faults = [
            fault for fault in planned() if (fault.layer, fault.region, fault.call) == (layer.number, region, call)
        ]
        self._to_recompute: deque[int] = deque()

    def due(self) -> str:
        """The fault that the forward of this call and its backward have; empty for none. Once per forward."""
        microbatch = self._microbatch()
        step = host.get_args().curr_iteration + 1
        for fault in self.faults:
            is_its_turn = fault.part != "recompute" or is_in_backward()
            if (fault.step, fault.microbatch) == (step, microbatch) and is_its_turn:
                return fault.text
        return ""

    def _microbatch(self) -> int:
        if is_in_backward():
            return self._to_recompute.popleft()
        if not torch.is_grad_enabled():
            self._to_recompute.append(self.layer.forwards.microbatch)
        return self.layer.forwards.microbatch


def due_in_running_layer(region: str) -> str:
    """`Seam.due` for a Function without a module."""
    return Layer.running.seam(region).due() if Layer.running is not None else ""


# Where --------------------------------------------------------------------------------------------------------------


def plant(chunks: Sequence[Module]) -> None:
    """Give each opaque module of each layer its seam."""
    for chunk in chunks:
        forwards = Forwards(chunk)
        for module in chunk.modules():
            if hasattr(module, "layer_number") and "self_attention" in module._modules:
                layer = Layer(module, forwards)
                for region, opaque in opaque_modules(module):
                    opaque.seam = Seam(layer, region)


def opaque_modules(layer: Module) -> Iterator[tuple[str, Any]]:
    """Modules that ask for a seam, by the last part of their names."""
    for name, module in layer.named_modules():
        if hasattr(module, "seam"):
            yield name.rpartition(".")[2], module


def planted(train: Callable[..., Any]) -> Callable[..., Any]:
    """Plant, train, and say what has acted."""

    def training(forward_step: Any, chunks: Sequence[Module], *args: Any, **kwargs: Any) -> Any:
        plant(chunks)
        try:
            return train(forward_step, chunks, *args, **kwargs)
        finally:
            for text, times in has_acted.items():
                print(f"opaque fault acted {times} times: {text}", flush=True)

    return training
