"""`megatron_nanguard.check_grads(model)`: list the parameters with a non-finite gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from megatron_nanguard.megatron_api.buffers import LocalGradient, local_gradient
from megatron_nanguard.records.postmortem import BadParameter
from megatron_nanguard.records.trace import pattern_of
from megatron_nanguard.tensor_names import element_index
from megatron_nanguard.watching.value_checks import is_beyond


@torch.no_grad()
def check_grads(model: Module) -> list[BadParameter]:
    """Check the gradient that each parameter has now: `main_grad` where there is one, else `grad`.

    Returns:
        The bad ones, in the order of `model.named_parameters()`, each with its counts and first bad index.
    Sync: one host read if all are finite.
    """
    found = ((name, param, _gradient(param)) for name, param in model.named_parameters())
    looked = [(name, param, gradient) for name, param, gradient in found if gradient is not None]
    if not is_beyond([gradient.data for _, _, gradient in looked], None):
        return []
    return [_record(*each) for each in looked if is_beyond([each[2].data], None)]


def _gradient(param: Parameter) -> LocalGradient | None:
    grad: Tensor | None = param.grad
    if grad is not None and grad.is_sparse:  # of an embedding; an index into its values says little
        return LocalGradient(grad.coalesce().values().reshape(-1), -1)
    return local_gradient(param)


def _record(name: str, param: Parameter, gradient: LocalGradient) -> BadParameter:
    data = gradient.data
    nan_count, inf_count = int(data.isnan().sum()), int(data.isinf().sum())
    first = gradient.start + int(data.isfinite().logical_not().to(torch.uint8).argmax())
    return BadParameter(
        name=name,
        local_name=name,
        shape=tuple(param.shape),
        norm=math.nan if nan_count else math.inf,
        pattern=pattern_of(nan_count, inf_count),
        nan_count=nan_count,
        inf_count=inf_count,
        counted_elements=data.numel(),
        first_index=None if gradient.start < 0 else element_index(first, param.shape),
    )
