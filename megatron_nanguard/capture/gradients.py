"""Gradients of this rank by parameter: what two runs of one step are compared by."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from megatron_nanguard.megatron_api.buffers import local_gradient
from megatron_nanguard.parameters.registry import ParameterMap
from megatron_nanguard.sentinel.before_reduction import BucketNorms


def gradients_by_name(names: ParameterMap) -> dict[str, Tensor]:
    """Each gradient as it stands now, flat; parameters without one are left out."""
    found = {entry.name: local_gradient(names.parameter(entry)) for entry in names.entries}
    return {name: gradient.data for name, gradient in found.items() if gradient is not None}


def norms_by_name(buckets: Sequence[BucketNorms], names: ParameterMap) -> dict[str, float]:
    """Norms that were taken before the reduction, where there is one per parameter.

    Sync: one host read per bucket.
    """
    found: dict[str, float] = {}
    for bucket in buckets:
        if len(bucket.norms) == len(bucket.params):
            values = bucket.norms.tolist()
            found |= {names.entry(param).name: norm for param, norm in zip(bucket.params, values, strict=True)}
    return found
