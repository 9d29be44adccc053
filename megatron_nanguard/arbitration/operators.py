"""The operators that a bundle may call: arithmetic of torch alone, nothing that reads, writes or runs anything else."""

from __future__ import annotations

import re
from typing import Any, Final

from torch._ops import OpOverload

from megatron_nanguard.arbitration.repro import find_operator
from megatron_nanguard.errors import PostmortemError

NAME: Final = re.compile(r"aten\.([a-z0-9_]+)\.([A-Za-z0-9_]+)")
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
"""Operators by name; what writes in place, `log_`, goes with `log`."""


def allowed_operator(name: str) -> Any:
    """Look up an operator that a bundle names.

    Raises:
        PostmortemError: it is not on the list, or this torch does not have it.
    """
    match = NAME.fullmatch(name)
    if match is None or match[1].removesuffix("_") not in ALLOWED:
        raise PostmortemError(f"operator {name[:80]!r} is not on the list of what a bundle may call; nothing was run")
    operator = find_operator(name)
    if not isinstance(operator, OpOverload):
        raise PostmortemError(f"this torch has no operator {name}")
    return operator
