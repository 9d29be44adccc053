"""References of linear layers, of a norm and a linear layer in one, and of an MLP in one.

A Function that communicates cannot be run again by one rank; its reference computes this rank's part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

Activation = Callable[[Tensor], Tensor]

_NORMS: Final = ("LayerNorm", "RMSNorm")
_PLAIN: Final[Mapping[str, Activation]] = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": torch.relu,
    "srelu": lambda x: torch.relu(x).square(),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}
_GATED: Final[Mapping[str, str]] = {
    "geglu": "gelu",
    "qgeglu": "qgelu",
    "reglu": "relu",
    "sreglu": "srelu",
    "swiglu": "silu",
    "glu": "sigmoid",
}
"""Activations that gate the second half of the last dim by a function of the first."""
_APEX_ACTIVATIONS: Final = ("none", "relu", "sigmoid")


def linear(
    *,
    weight: Tensor,
    input: Tensor | None = None,
    inp: Tensor | None = None,
    bias: Tensor | None = None,
    **_: object,
) -> Tensor:
    """x w^T + b; Megatron and Apex call x `input`, Transformer Engine `inp`."""
    x = inp if input is None else input
    assert x is not None
    return _linear(x, weight, bias)


def layernorm_linear(
    *,
    inp: Tensor,
    ln_weight: Tensor,
    weight: Tensor,
    ln_bias: Tensor | None = None,
    bias: Tensor | None = None,
    **more: object,
) -> Tensor:
    """A norm, then a linear layer, as in Transformer Engine; only the result of the linear layer is returned."""
    return _linear(_norm(inp, ln_weight, ln_bias, more), weight, bias)


def layernorm_mlp(
    *,
    inp: Tensor,
    ln_weight: Tensor,
    fc1_weight: Tensor,
    fc2_weight: Tensor,
    ln_bias: Tensor | None = None,
    fc1_bias: Tensor | None = None,
    fc2_bias: Tensor | None = None,
    **more: object,
) -> Tensor:
    """A norm, then two linear layers with an activation between them, as in Transformer Engine.

    Raises:
        NotImplementedError: the activation is not known here.
    """
    name = str(more.get("activation") or _word_of(_settings(more), (*_PLAIN, *_GATED)))
    hidden = _linear(_norm(inp, ln_weight, ln_bias, more), fc1_weight, fc1_bias)
    return _linear(_activated(hidden, name), fc2_weight, fc2_bias)


def dense_gelu_dense(
    *, input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, **_: object
) -> Tensor:
    """Two linear layers with a gelu between them, as in Apex."""
    return _linear(_activated(_linear(input, weight1, bias1), "gelu"), weight2, bias2)


def mlp(*, bias: int, activation: int, **args: Tensor) -> Tensor:
    """Linear layers with an activation after each but the last, as in Apex: input, weights, then biases if there are.

    Raises:
        NotImplementedError: the activation is not known here.
    """
    x, *rest = args.values()
    num_layers = len(rest) // 2 if bias else len(rest)
    for layer, weight in enumerate(rest[:num_layers]):
        x = _linear(x, weight, rest[num_layers + layer] if bias else None)
        if activation and layer < num_layers - 1:
            x = _activated(x, _APEX_ACTIVATIONS[activation])
    return x


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Transformer Engine passes an empty tensor where there is no bias."""
    return functional.linear(x, weight, bias if bias is not None and bias.numel() else None)


def _activated(x: Tensor, name: str) -> Tensor:
    if name in _PLAIN:
        return _PLAIN[name](x)
    if name not in _GATED:
        raise NotImplementedError(f"no reference for the activation {name or 'that is not named'}")
    gate, value = torch.chunk(x, 2, dim=-1)
    return _PLAIN[_GATED[name]](gate) * value


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, more: Mapping[str, object]) -> Tensor:
    """The norm that the settings name, with their epsilon."""
    settings = _settings(more)
    kind = more.get("normalization") or _word_of(settings, _NORMS)
    found = more.get("eps", next((value for value in settings if isinstance(value, float)), 1e-5))
    assert isinstance(found, float)
    centred = x if kind == "RMSNorm" else x - x.mean(-1, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + found)
    result = result * (1 + weight if _is_zero_centred(more, settings) else weight)
    return result + bias if bias is not None and bias.numel() and kind != "RMSNorm" else result


def _settings(more: Mapping[str, object]) -> Sequence[object]:
    """What newer releases of Transformer Engine pass in one tuple, whose order differs between them."""
    given = more.get("non_tensor_args")
    return given if isinstance(given, list | tuple) else ()


def _is_zero_centred(more: Mapping[str, object], settings: Sequence[object]) -> bool:
    """Whether the weight of the norm is stored less one: in the tuple it stands before activation or normalization."""
    if "zero_centered_gamma" in more:
        return bool(more["zero_centered_gamma"])
    word = _word_of(settings, (*_NORMS, *_PLAIN, *_GATED))
    position = next((index for index, value in enumerate(settings) if isinstance(value, str) and value == word), 0)
    return position > 0 and settings[position - 1] is True


def _word_of(settings: Sequence[object], words: Sequence[str]) -> str:
    """The first setting that is one of some words; empty where none is."""
    return next((value for value in settings if isinstance(value, str) and value in words), "")


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "_Linear": linear,
    "LinearWithGradAccumulationAndAsyncCommunication": linear,
    "LinearWithFrozenWeight": linear,
    "RouterGatingLinearFunction": linear,
    "FusedDenseFunc": linear,
    "DenseNoBiasFunc": linear,
    "_LayerNormLinear": layernorm_linear,
    "_LayerNormMLP": layernorm_mlp,
    "FusedDenseGeluDenseFunc": dense_gelu_dense,
    "MlpFunction": mlp,
}
