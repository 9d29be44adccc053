"""One call of a watched module: its inputs and outputs, and later the gradients of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.watching.bad_values import BadValues, WatchPhase
from megatron_nanguard.watching.gradient_edges import Edge, edges_of
from megatron_nanguard.watching.value_checks import facts_of, is_beyond


class ForwardTensors:
    """Inputs or outputs of a forward. Nothing is copied: `now` gives their content at that time."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Detached aliases: Megatron replaces the data of an output object after it was sent to the next stage.
        self._tensors = {name: (tensor.detach(), _version(tensor)) for name, tensor in tensors.items()}

    def now(self) -> dict[str, Tensor]:
        """The tensors whose memory was not freed."""
        return {name: tensor for name, (tensor, _) in self._tensors.items() if not _is_freed(tensor)}

    def changed(self, kind: str) -> dict[str, str]:
        """The tensors that changed after the forward, each with how."""
        found = {}
        for name, (tensor, version) in self._tensors.items():
            if _is_freed(tensor):
                found[f"{kind} {name}".strip()] = "its memory was given back"
            elif _version(tensor) != version:
                found[f"{kind} {name}".strip()] = "changed in place since"
        return found


@dataclass(eq=False)
class WatchedCall:
    """A call of one module. The hooks on its autograd graph keep it alive.

    Attributes:
        module: that was called.
        name: of the module.
        phase: forward or recompute.
        number: calls of this module in the same phase before this one.
        began: autograd's sequence number at its start.
        inputs: tensors that it received.
        edges: edges of the autograd graph behind the inputs, each with the name of its input.
        outputs: tensors that it returned; empty while it runs.
        borders: number of border nodes (see `border_nodes`) whose backward has not run yet.
        grad_output: gradients of outputs, as far as they have been computed.
        grad_input: this module's share of the gradients of its inputs, as far as they have been computed.
    """

    module: Module
    name: str
    phase: WatchPhase
    number: int
    began: int
    inputs: ForwardTensors
    edges: dict[Edge, str]
    outputs: ForwardTensors = field(default_factory=lambda: ForwardTensors({}))
    borders: int = 0
    grad_output: dict[str, Tensor] = field(default_factory=dict)
    grad_input: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def begin(cls, module: Module, name: str, phase: WatchPhase, number: int, inputs: dict[str, Tensor]) -> WatchedCall:
        """Make the record of a call that is about to run."""
        edges = edges_of(inputs) if torch.is_grad_enabled() else {}
        began: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        return cls(module, name, phase, number, began, ForwardTensors(inputs), edges)

    def add_grad_input(self, name: str, gradient: Tensor) -> None:
        """Add a share of an input's gradient; an input that the module reads in two places gets two of them."""
        former = self.grad_input.get(name)
        self.grad_input[name] = gradient.detach() if former is None else former + gradient.detach()

    def release(self) -> None:
        """Drop all tensors after the backward, since the graph may live longer."""
        self.inputs, self.outputs = ForwardTensors({}), ForwardTensors({})
        self.grad_output.clear()
        self.grad_input.clear()

    def has_bad_outputs(self, above: float | None) -> bool:
        """Sync: one host read."""
        return is_beyond(self.outputs.now().values(), above)

    def has_bad_gradients(self, above: float | None) -> bool:
        """Sync: one host read."""
        return is_beyond([*self.grad_output.values(), *self.grad_input.values()], above)

    def bad_values(self, phase: WatchPhase, step: int | None, above: float | None) -> BadValues:
        """Describe what is bad and copy all tensors of the call.

        Sync: the host waits for the device.
        """
        inputs, outputs = self.inputs.now(), self.outputs.now()
        into, out = (self.grad_output, self.grad_input) if phase == "backward" else (inputs, outputs)
        return BadValues(
            module=self.name,
            phase=phase,
            step=step,
            call=self.number,
            bad_out=tuple(f for f in (facts_of(n, t, above) for n, t in out.items()) if f is not None),
            bad_in=tuple(f for f in (facts_of(n, t, above) for n, t in into.items()) if f is not None),
            above=above,
            changed=self.inputs.changed("input") | self.outputs.changed("output"),
            tensors={
                "inputs": _copies(inputs),
                "outputs": _copies(outputs),
                "grad_output": _copies(self.grad_output),
                "grad_input": _copies(self.grad_input),
                "state": _copies({**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}),
            },
        )


@torch.no_grad()
def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the host; a view would be saved with its whole storage."""
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
        for name, tensor in tensors.items()
    }


def _version(tensor: Tensor) -> int:
    """Number of in-place changes so far; inference tensors do not count them."""
    return 0 if tensor.is_inference() else tensor._version


def _is_freed(tensor: Tensor) -> bool:
    """Whether the storage was freed while the tensor object still exists, as activation checkpointing may do.

    Source: megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput.discard_output_and_register_recompute
    """
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0
