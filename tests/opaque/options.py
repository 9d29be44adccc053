"""What the environment chooses of the opaque layers; read when the spec is imported.

OPAQUE_MLP=fused        the whole MLP with its norm is one Function; else two linear ones around a visible activation
OPAQUE_WGRAD=fused      weight gradients are added straight into `main_grad`, and dummies are handed to autograd
OPAQUE_FP8=delayed      products of float8 operands, with delayed scaling
OPAQUE_KERNELS=numpy    no compiler
OPAQUE_FAULT, OPAQUE_TWIN   see `faults`
"""

from __future__ import annotations

import os


def _is(name: str, value: str) -> bool:
    return os.environ.get(name) == value


FUSED_MLP = _is("OPAQUE_MLP", "fused")
FUSED_WGRAD = _is("OPAQUE_WGRAD", "fused")
DELAYED_SCALING = _is("OPAQUE_FP8", "delayed")
