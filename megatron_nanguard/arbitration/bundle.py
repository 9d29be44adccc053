"""Write a saved call as a directory that reproduces it with torch alone, and read one without trusting its content."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._ops import OpOverload

from megatron_nanguard.arbitration import references, repro
from megatron_nanguard.arbitration.call_catcher import CAP_BYTES, CaughtCall
from megatron_nanguard.arbitration.repro import find_operator
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import atomic_write, read_record, write_record
from megatron_nanguard.records.suspect_call import SavedCall, SavedTensor
from megatron_nanguard.tensor_names import dtype_name

MAX_CALL_BYTES: Final = 4 << 20
MAX_TENSOR_BYTES: Final = CAP_BYTES + MAX_CALL_BYTES
"""The inputs, and a header of names."""
log = logging.getLogger("megatron_nanguard")


def write_bundle(directory: Path, call: CaughtCall) -> bool:
    """Write tensors, scripts and, last, `call.json`.

    Returns:
        Whether everything was written; if not, a line in the log says why.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, tensors in ((repro.TENSORS_NAME, call.tensors), (repro.FULL_NAME, call.full)):
            if tensors:
                with atomic_write(directory / name) as temporary:
                    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        scripts = {"repro.py": repro.__file__}
        if reference := references.file_of(call.saved.operator):
            scripts[repro.REFERENCE_NAME] = str(reference)
        for name, source in scripts.items():
            with atomic_write(directory / name) as temporary:
                shutil.copyfile(source, temporary)
        write_record(directory / repro.CALL_NAME, call.saved)
    except (OSError, SafetensorError) as error:
        log.error("cannot write %s: %s; the incident has no reproduction", directory, error)
        return False
    return True


def read_bundle(directory: Path, whole: bool = False) -> CaughtCall:
    """Read a bundle; nothing in it is run, and nothing outside of it is read.

    Args:
        directory: where `call.json` is.
        whole: read the whole inputs too, where they were saved.
    Raises:
        PostmortemError: it is missing, incomplete, or not what this package writes.
    """
    saved = read_record(SavedCall, _inside(directory, repro.CALL_NAME, MAX_CALL_BYTES))
    if saved.is_redacted:
        raise PostmortemError(f"{directory}: its tensors were stripped by nanguard redact")
    if not saved.why_not:
        _check_arguments(saved, directory)
    tensors = _read_tensors(directory, repro.TENSORS_NAME, saved.tensors)
    full = _read_tensors(directory, repro.FULL_NAME, saved.full_tensors) if whole else {}
    return CaughtCall(saved, tensors, full)


def _check_arguments(saved: SavedCall, directory: Path) -> None:
    """Check that every argument has its value, and that every tensor it names is described."""
    arguments = (*saved.args, *saved.kwargs, *saved.grad_outputs)
    for argument in arguments:
        if not argument.is_list and len(argument.values) != 1:
            raise PostmortemError(
                f"{directory}: argument {argument.name} has {len(argument.values)} values, expected 1"
            )
    wanted = {
        value.text for argument in arguments for value in argument.values if value.kind in ("tensor", "generator")
    }
    if saved.rng is not None:
        wanted.add(saved.rng)
    for described in (saved.tensors, saved.full_tensors or saved.tensors):
        if missing := sorted(wanted - described.keys()):
            raise PostmortemError(f"{directory}: {repro.CALL_NAME} names {missing[0]!r}, and describes no such tensor")


def _read_tensors(directory: Path, name: str, described: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
    if not described:
        return {}
    path = _inside(directory, name, MAX_TENSOR_BYTES)
    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise PostmortemError(f"{path} is no safetensors file: {error}") from error
    _check(described, tensors, path)
    return tensors


def _inside(directory: Path, name: str, max_bytes: int) -> Path:
    path = directory / name
    if not path.is_file():
        raise PostmortemError(f"{directory} is no bundle: it has no {name}")
    if path.resolve().parent != directory.resolve():
        raise PostmortemError(f"{path} points out of the bundle, to {path.resolve()}")
    if path.stat().st_size > max_bytes:
        raise PostmortemError(f"{path} has {path.stat().st_size} bytes, more than the {max_bytes} that we write")
    return path


def _check(described: Mapping[str, SavedTensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    if described.keys() != tensors.keys():
        raise PostmortemError(f"{path} holds {sorted(tensors)}, {repro.CALL_NAME} says {sorted(described)}")
    for name, tensor in tensors.items():
        meta, shape, dtype = described[name], tuple(tensor.shape), dtype_name(tensor.dtype)
        if (meta.shape, meta.dtype) != (shape, dtype):
            raise PostmortemError(f"{path}: {name} is {dtype} {shape}, not as described")
        if not _is_dense(meta):
            raise PostmortemError(f"{path}: {name} has stride {meta.stride}, which is not dense")


def _is_dense(meta: SavedTensor) -> bool:
    """Whether the elements fill their memory without gaps in some order of the dims."""
    if len(meta.stride) != len(meta.shape):
        return False
    expected = 1
    for stride, size in sorted(pair for pair in zip(meta.stride, meta.shape, strict=True) if pair[1] != 1):
        if size and stride != expected:
            return False
        expected *= size
    return True


_OPERATOR: Final = re.compile(r"aten\.([a-z0-9_]+)\.([A-Za-z0-9_]+)")
_NAMES = """
_foreach_abs _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_clamp_max _foreach_copy _foreach_div
_foreach_lerp _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_sqrt _foreach_sub _fused_rms_norm
_fused_rms_norm_backward _log_softmax _log_softmax_backward_data _scaled_dot_product_attention_math
_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
_scaled_dot_product_flash_attention_for_cpu _softmax _softmax_backward_data _to_copy abs acos acosh add addbmm
addcdiv addcmul addmm addmv addr amax amin asin asinh atan atan2 atanh baddbmm bernoulli bmm cat ceil celu clamp
clamp_max clamp_min clone convolution convolution_backward copy cos cosh cumprod cumsum div dot
dropout elu elu_backward embedding embedding_dense_backward erf erfc erfinv exp exp2 expm1 fill floor
floor_divide fmax fmin fmod gather gelu gelu_backward glu glu_backward hardsigmoid hardswish hypot index
index_add index_put index_select leaky_relu leaky_relu_backward lerp linear log log10 log1p log2 log_sigmoid
logaddexp logcumsumexp logit logsumexp masked_fill matmul max maximum mean min minimum mish mm mul mv nan_to_num
native_dropout native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm
native_layer_norm_backward neg nll_loss_backward nll_loss_forward norm pow prod rand_like randn_like reciprocal
relu remainder rms_norm round rsqrt rsub scatter scatter_add scatter_reduce select_backward sigmoid
sigmoid_backward sign silu silu_backward sin sinh slice_backward softplus softplus_backward sqrt square stack std
sub sum tan tanh tanh_backward threshold_backward topk true_divide var var_mean where xlogy
"""
ALLOWED: Final = frozenset(_NAMES.split())
"""Operators that a bundle may call: arithmetic only, nothing that reads, writes or runs anything else.

`log` allows the in-place `log_` too.
"""


def allowed_operator(name: str) -> OpOverload:
    """Look up an operator that a bundle names.

    Raises:
        PostmortemError: it is not on the list, or this torch does not have it.
    """
    match = _OPERATOR.fullmatch(name)
    if match is None or match[1].removesuffix("_") not in ALLOWED:
        raise PostmortemError(f"operator {name[:80]!r} is not on the list of what a bundle may call; nothing was run")
    operator = find_operator(name)
    if not isinstance(operator, OpOverload):
        raise PostmortemError(f"this torch has no operator {name}")
    return operator
