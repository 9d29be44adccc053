"""Plain PyTorch references for kernels that torch cannot run in higher precision: a table, and one file for each.

A file imports nothing of this package, since a bundle holds a copy of it. Its `reference` takes the arguments of the
kernel by name and ignores those that do not change the result. Gradients come from autograd.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from megatron_nanguard.arbitration.repro import Function

REFERENCES: Final[dict[str, str]] = {
    "FastLayerNormFN": "layernorm",
    "FusedLayerNormAffineFunction": "layernorm",
    "FusedLayerNormFunction": "layernorm",
    "FusedRMSNormAffineFunction": "rmsnorm",
    "FusedRMSNormFunction": "rmsnorm",
    "BatchInvariantRMSNormFn": "rmsnorm",
    "GeLUFunction": "gelu",
    "BiasSwiGLUFunction": "swiglu",
    "SwiGLUFunction": "swiglu",
    "WeightedSwiGLUFunction": "swiglu",
    "ScaledSoftmax": "softmax",
    "ScaledMaskedSoftmax": "softmax",
    "ScaledUpperTriangMaskedSoftmax": "causal_softmax",
    "FlashAttnFunc": "dot_product_attention",
    "aten._scaled_dot_product_cudnn_attention.default": "dot_product_attention",
    "aten._scaled_dot_product_efficient_attention.default": "dot_product_attention",
    "aten._scaled_dot_product_flash_attention.default": "dot_product_attention",
    "_VocabParallelCrossEntropy": "cross_entropy",
    "SoftmaxCrossEntropyLoss": "cross_entropy",
}
"""Kernel -> file. Autograd Functions by class name, of Megatron, Apex and flash-attn; operators by their full name."""


def reference_for(kernel: str) -> Function | None:
    """The reference of a kernel; None when there is none."""
    if kernel not in REFERENCES:
        return None
    reference = import_module(f"{__name__}.{REFERENCES[kernel]}").reference
    return lambda args, kwargs: reference(**args, **kwargs)


def reference_file(kernel: str) -> Path | None:
    """The file of that reference; None when there is none."""
    return Path(__file__).with_name(f"{REFERENCES[kernel]}.py") if kernel in REFERENCES else None
