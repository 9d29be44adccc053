"""A kernel error planted under the name of each kernel is found by its reference; bad data is bad there too."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_nanguard.arbitration import references
from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.arbitration.references import REFERENCES, reference_for
from megatron_nanguard.arbitration.repetition import arbitrate
from tests.unit.arbitration.calls import listening

X = torch.linspace(-2, 2, 24).reshape(4, 6)
SEQUENCE = torch.linspace(-2, 2, 24).reshape(1, 4, 2, 3)
CALLS: dict[str, dict[str, Any]] = {
    "FastLayerNormFN": {"x": X, "gamma": X[0], "beta": X[1], "epsilon": 1e-5, "memory_efficient": False},
    "FusedLayerNormAffineFunction": {"input": X, "weight": X[0], "bias": X[1], "normalized_shape": (6,), "eps": 1e-5},
    "FusedLayerNormFunction": {"input": X, "normalized_shape": (6,), "eps": 1e-5},
    "FusedRMSNormAffineFunction": {"input": X, "weight": X[0], "normalized_shape": (6,), "eps": 1e-5},
    "FusedRMSNormFunction": {"input": X, "normalized_shape": (6,), "eps": 1e-5},
    "BatchInvariantRMSNormFn": {"x": X, "weight": X[0], "eps": 1e-5},
    "GeLUFunction": {"input": X, "bias": X[0]},
    "BiasSwiGLUFunction": {"input": X, "bias": X[0], "fp8_input_store": False, "cpu_offload_input": False},
    "SwiGLUFunction": {"input": X, "fp8_input_store": False, "cpu_offload_input": False},
    "WeightedSwiGLUFunction": {"input": X, "weights": X[:, :1], "fp8_input_store": False},
    "ScaledSoftmax": {"inputs": X, "scale": 0.5},
    "ScaledMaskedSoftmax": {"inputs": X, "mask": X > 1, "scale": 0.5},
    "ScaledUpperTriangMaskedSoftmax": {"inputs": X, "scale": 0.5},
    "FlashAttnFunc": {"q": SEQUENCE, "k": SEQUENCE, "v": SEQUENCE, "dropout_p": 0.0, "softmax_scale": None},
    "_VocabParallelCrossEntropy": {"vocab_parallel_logits": X, "target": torch.tensor([1, 2, 3, 0])},
    "SoftmaxCrossEntropyLoss": {"logits": X, "labels": torch.tensor([1, 2, 3, 0]), "smoothing": 0.0},
}
KERNELS = [name for name in REFERENCES if not name.startswith("aten.")]


def kernel(name: str, arguments: dict[str, Any], fails: bool) -> type[torch.autograd.Function]:
    """Stands for the kernel: computes the right thing, but for one element where it fails."""
    function = reference_for(name)
    assert function is not None

    def forward(ctx: Any, *args: Any) -> Any:
        out = function(dict(zip(arguments, args, strict=True)), {}).contiguous().clone()
        if fails:
            out.view(-1)[1] = float("nan")
        return out

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, kind) for each in ("ctx", *arguments)]
    )
    return type(name, (torch.autograd.Function,), {"forward": staticmethod(forward)})


def caught(name: str, arguments: dict[str, Any], fails: bool) -> CaughtCall:
    planted = kernel(name, arguments, fails)
    with listening(f"{name}.forward") as catcher:
        planted.apply(*arguments.values())
    return catcher.call


@pytest.mark.parametrize("name", KERNELS)
def test_an_error_of_the_kernel_is_found(name: str) -> None:
    found = arbitrate(caught(name, CALLS[name], fails=True), 2)

    assert (found.repeats_bad, found.reference_fp32, found.reference_fp64) == (2, "finite", "finite")
    assert found.reference == name


@pytest.mark.parametrize("name", KERNELS)
def test_bad_data_is_bad_by_the_reference_too(name: str) -> None:
    arguments = dict(CALLS[name])
    first = next(iter(arguments))
    arguments[first] = arguments[first].clone()
    arguments[first].view(-1)[0] = float("nan")

    found = arbitrate(caught(name, arguments, fails=False), 2)

    assert found.inputs_bad
    assert (found.repeats_bad, found.reference_fp32, found.reference_fp64) == (2, "bad", "bad")


def test_the_references_stand_alone() -> None:
    """A bundle takes the file along, so it may import torch and the standard library alone."""
    assert len(set(REFERENCES.values())) == 8
    assert "megatron_nanguard" not in Path(references.__file__).read_text()


def test_a_kernel_without_reference_has_none() -> None:
    assert reference_for("Nobody") is None
