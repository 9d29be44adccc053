"""What all opaque modules share: their place in the model, the parameters as Megatron makes them, the caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import _initialize_affine_weight_gpu
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn import Module, Parameter

from tests.opaque import options
from tests.opaque.delayed_scaling import DelayedScalingState, GlobalStateManager
from tests.opaque.faults import Seam
from tests.opaque.float8 import Float8Quantizer, Float8Storage


class OpaqueModule(Module):
    """Base of the modules.

    Attributes:
        seam: where its kernels can be made to go wrong; set before training begins.
        is_first_microbatch: whether what is cached of the weights is out of date.
        fp8_meta: delayed-scaling state of the inputs, weights and gradients of its products.
        _fp8_workspaces: the weight as it was cast in the first micro-batch.
    """

    products = 1
    """How many products it makes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.seam: Seam | None = None
        self.is_first_microbatch = True
        self.fp8 = options.DELAYED_SCALING
        self.fp8_meta: dict[str, Any] = {}
        self._fp8_workspaces: dict[str, Float8Storage] = {}

    def due(self) -> str:
        """The fault of this call and its backward."""
        return "" if self.seam is None else self.seam.due()

    def prepare_forward(self) -> bool:
        """Take part in the delayed scaling; returns whether this is the first module that does in this forward."""
        if not self.fp8:
            return False
        if not self.fp8_meta:
            device = next(self.parameters()).device
            self.fp8_meta["scaling_fwd"] = DelayedScalingState(2 * self.products, "e4m3", device)
            self.fp8_meta["scaling_bwd"] = DelayedScalingState(self.products, "e5m2", device)
        GlobalStateManager.add_to_global_buffer(self.fp8_meta)
        return GlobalStateManager.is_first_module()

    def quantizers(self, product: int = 0) -> tuple[Float8Quantizer | None, ...]:
        """Of a product's input, weight and gradient of the output; None where nothing is cast."""
        if not self.fp8:
            return None, None, None
        forward, backward = self.fp8_meta["scaling_fwd"], self.fp8_meta["scaling_bwd"]
        return forward.quantizer(2 * product), forward.quantizer(2 * product + 1), backward.quantizer(product)

    def add_weight(self, out_features: int, in_features: int, dim: int, init_method: Callable[[Tensor], Any]) -> None:
        """Make `weight` [out, in], this rank's part along `dim`, with the random numbers that Megatron's own take."""
        device = torch.cuda.current_device()
        shape = (out_features, in_features)
        self.weight = Parameter(torch.empty(shape, dtype=self.config.params_dtype, device=device))
        _initialize_affine_weight_gpu(self.weight, init_method, partition_dim=dim)
        self.weight.allreduce = True  # type: ignore[attr-defined]

    def add_vector(self, name: str, size: int, value: float) -> Parameter:
        """Make a parameter of one dim."""
        device = torch.cuda.current_device()
        parameter = Parameter(torch.full((size,), value, dtype=self.config.params_dtype, device=device))
        parameter.allreduce = True  # type: ignore[attr-defined]
        self.register_parameter(name, parameter)
        return parameter

    def sharded(self, prefix: str, offsets: Any, metadata: Any, axes: dict[str, int], group: Any) -> Any:
        """Checkpoint state; `axes` names the dims along which parameters are divided."""
        state = self.state_dict(prefix="", keep_vars=True)
        dp_cp_group = metadata["dp_cp_group"]
        return make_sharded_tensors_for_checkpoint(
            state, prefix, axes, offsets, tp_group=group, dp_cp_group=dp_cp_group
        )


def quantize_weight(
    weight: Tensor, quantizer: Float8Quantizer | None, workspace: Float8Storage | None, is_first: bool | None
) -> tuple[Tensor | Float8Storage, Float8Storage | None]:
    """The weight as a product takes it, and the workspace that is new.

    Args:
        weight: as the optimizer has it.
        quantizer: None where nothing is cast.
        workspace: of an earlier micro-batch, which is used again unless this one is the first.
        is_first: None where nothing is cached.
    """
    if quantizer is None:
        return weight, None
    if workspace is None or is_first is None:
        made = quantizer(weight)
        return made, made if is_first is not None else None
    if is_first:
        quantizer.update(weight, workspace)
    return workspace, None
