"""A kernel error planted under the name of each kernel is found by its reference; bad data is bad there too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
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
QKV = torch.linspace(-2, 2, 72).reshape(4, 3, 2, 3)
HEADS = {"q": QKV[:, 0], "k": QKV[:, 1], "v": QKV[:, 2]}
ENDS = torch.tensor([0, 1, 4], dtype=torch.int32)
NORMED = {"inp": X, "ln_weight": X[0], "ln_bias": None}
EXPERTS = torch.tensor([[0, 1], [1, 0], [1, 2], [0, 2]], dtype=torch.int32)
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
    "CrossEntropyFunction": {"inp": X, "target": torch.tensor([1, 2, 3, -100]), "ignore_idx": -100},
    "FusedLayerNormAffineMixedDtypesFunction": {"input": X, "weight": X[0], "bias": X[1], "normalized_shape": (6,)},
    "FusedRMSNormAffineMixedDtypesFunction": {"input": X, "weight": X[0], "normalized_shape": (6,)},
    "_LayerNorm": {"inp": X, "ln_weight": X[0], "ln_bias": X[1], "eps": 1e-5, "zero_centered_gamma": True},
    "_RMSNorm": {"inp": X, "rmsnorm_weight": X[0], "eps": 1e-5, "zero_centered_gamma": False},
    "GeGLUFunction": {"input": X},
    "BiasGeGLUFunction": {"input": X, "bias": X[0]},
    "WeightedQuickGeGLUFunction": {"input": X, "weights": X[:, :1], "fp8_input_store": False, "linear_offset": X[0, 0]},
    "WeightedBiasQuickGeGLUFunction": {"input": X, "bias": X[0], "weights": X[:, :1], "fp8_input_store": False},
    "WeightedSquaredReLUFunction": {"input": -X, "weights": X[:, 5:]},
    "ScaledAlignedCausalMaskedSoftmax": {"inputs": X, "scale": 0.5},
    "FlashAttnQKVPackedFunc": {"qkv": QKV.unsqueeze(0), "dropout_p": 0.0, "softmax_scale": None, "causal": True},
    "FlashAttnKVPackedFunc": {"q": SEQUENCE, "kv": QKV[None, :, :2], "dropout_p": 0.0, "softcap": 30.0},
    "FlashAttnVarlenFunc": {**HEADS, "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS, "dropout_p": 0.0, "causal": True},
    "FlashAttnVarlenQKVPackedFunc": {"qkv": QKV, "cu_seqlens": ENDS, "dropout_p": 0.0},
    "FlashAttnVarlenKVPackedFunc": {"q": QKV[:, 0], "kv": QKV[:, :2], "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS},
    "FusedAttnFunc": {**HEADS, "qkv_layout": "thd_thd_thd", "cu_seqlens_q": ENDS, "cu_seqlens_kv": ENDS},
    "FusedRoPEFunc": {"t": SEQUENCE.transpose(0, 1), "freqs": X[:, None, None, :2], "tensor_format": "sbhd"},
    "_Linear": {"inp": X, "weight": X[:2], "bias": None, "fwd_args": object()},
    "LinearWithGradAccumulationAndAsyncCommunication": {"input": X, "weight": X[:2], "bias": X[0, :2]},
    "LinearWithFrozenWeight": {"input": X, "weight": X[:2], "bias": None, "allreduce_dgrad": False},
    "RouterGatingLinearFunction": {"inp": X, "weight": X[:2], "bias": None, "router_dtype": torch.float32},
    "FusedDenseFunc": {"input": X, "weight": X[:2], "bias": X[0, :2]},
    "DenseNoBiasFunc": {"input": X, "weight": X[:2]},
    "_LayerNormLinear": {**NORMED, "weight": X[:2], "bias": None, "non_tensor_args": (1e-5, True, "RMSNorm")},
    "_LayerNormMLP": {
        **NORMED,
        "fc1_weight": X,
        "fc1_bias": X[0, :4],
        "fc2_weight": X[:2, :2],
        "fc2_bias": torch.empty(0),
        "activation": "swiglu",
    },
    "FusedDenseGeluDenseFunc": {"input": X, "weight1": X, "bias1": X[0, :4], "weight2": X[:2, :4], "bias2": X[0, :2]},
    "MlpFunction": {"bias": 0, "activation": 1, "args": (X, X[:2], X[:3, :2])},
    "_GroupedLinear": {"inp": X, "m_splits": [3, 1], "out": None, "weights_and_biases": (X[:2], X[2:])},
    "GMMFunction": {"x": X, "weight": X.reshape(2, 6, 2), "bias": None, "group_list": torch.tensor([1, 4])},
    "GroupedGemm": {"a": X, "b": X.reshape(2, 2, 6), "batch_sizes": torch.tensor([1, 3]), "trans_b": True},
    "_moe_permute": {"inp": X, "indices": EXPERTS, "num_out_tokens": 8},
    "_moe_permute_index_map": {"inp": X, "index": EXPERTS, "num_out_tokens": -1},
    "_moe_permute_mask_map": {"inp": X, "routing_map": X > -3, "num_out_tokens": 24, "probs": None},
    "_moe_unpermute": {"inp": X, "row_id_map": torch.tensor([0, 2, 1, 3]), "probs": X[:2, :2]},
    "_moe_unpermute_index_map": {"inp": X, "row_id_map": torch.tensor([0, 2, 1, 3]), "probs": None},
    "_moe_chunk_sort": {"inp": X, "split_sizes": torch.tensor([1, 3]), "sorted_idxs": torch.tensor([1, 0])},
}
STARS = ("args", "weights_and_biases")
KERNELS = [name for name in REFERENCES if "." not in name]


def kernel(name: str, arguments: dict[str, Any], fails: bool) -> type[torch.autograd.Function]:
    """Stands for the kernel: computes the right thing, but for one element where it fails."""
    function = reference_for(name)
    assert function is not None

    def forward(ctx: Any, *args: Any) -> Any:
        out = function(dict(_named(arguments, args)), {}).contiguous().clone()
        if fails:
            out.view(-1)[1] = float("nan")
        return out

    kind, star = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, star if each in STARS else kind) for each in ("ctx", *arguments)]
    )
    return type(name, (torch.autograd.Function,), {"forward": staticmethod(forward)})


def caught(name: str, arguments: dict[str, Any], fails: bool) -> CaughtCall:
    planted = kernel(name, arguments, fails)
    with listening(f"{name}.forward") as catcher:
        planted.apply(*_flat(arguments))
    return catcher.call


def _flat(arguments: dict[str, Any]) -> Iterator[Any]:
    """The values; those of a star one by one."""
    for name, value in arguments.items():
        yield from value if name in STARS else (value,)


def _named(arguments: dict[str, Any], args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Names and values; those of a star are numbered."""
    names = [name for name in arguments if name not in STARS]
    yield from zip(names, args, strict=False)
    yield from ((f"{STARS[-1]}.{index}", value) for index, value in enumerate(args[len(names) :]))


@pytest.mark.parametrize("name", KERNELS)
def test_an_error_of_the_kernel_is_found(name: str) -> None:
    found = arbitrate(caught(name, CALLS[name], fails=True), 2)

    assert (found.repeats_bad, found.reference_fp32, found.reference_fp64) == (2, "finite", "finite")
    assert found.reference == name


@pytest.mark.parametrize("name", KERNELS)
def test_bad_data_is_bad_by_the_reference_too(name: str) -> None:
    arguments = dict(CALLS[name])
    first = next(name for name, value in arguments.items() if isinstance(value, torch.Tensor) or name == "args")
    bad = (arguments[first][0] if first == "args" else arguments[first]).clone()
    bad.view(-1)[0] = float("nan")
    arguments[first] = (bad, *arguments[first][1:]) if first == "args" else bad

    found = arbitrate(caught(name, arguments, fails=False), 2)

    assert found.inputs_bad
    assert (found.repeats_bad, found.reference_fp32, found.reference_fp64) == (2, "bad", "bad")


def test_the_references_stand_alone() -> None:
    """A bundle takes the file along, so it may import torch and the standard library alone."""
    files = {references.file_of(kernel) for kernel in REFERENCES}
    assert len(files) == 6
    for path in files:
        assert path is not None
        assert "megatron_nanguard" not in path.read_text()


def test_a_kernel_without_reference_has_none() -> None:
    assert reference_for("Nobody") is None
    assert references.file_of("Nobody") is None
