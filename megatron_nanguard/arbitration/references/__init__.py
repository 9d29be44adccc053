"""Plain PyTorch references for kernels that torch cannot run in higher precision.

A reference takes the arguments of the kernel by name and ignores those that do not change the result. Gradients come
from autograd. The files beside this one import nothing of this package, since a bundle holds a copy of the one that it
needs; each lists its own in `REFERENCES`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from megatron_nanguard.arbitration.references import (
    activations,
    attention_and_rope,
    cross_entropy,
    experts,
    layers,
    norms,
)

REFERENCES: Final[Mapping[str, Callable[..., Tensor]]] = {
    **norms.REFERENCES,
    **activations.REFERENCES,
    **attention_and_rope.REFERENCES,
    **cross_entropy.REFERENCES,
    **layers.REFERENCES,
    **experts.REFERENCES,
}
"""Reference of a kernel. Autograd Functions by class name, of Megatron, Transformer Engine, Apex, flash-attn and
MindSpeed; operators by full name."""


def reference_for(kernel: str) -> Callable[[dict[str, object], dict[str, object]], Tensor] | None:
    """The reference of a kernel, called with positional arguments by name and keyword arguments; None without one."""
    reference = REFERENCES.get(kernel)
    return None if reference is None else lambda args, kwargs: reference(**args, **kwargs)


def file_of(kernel: str) -> Path | None:
    """The file that holds the reference of a kernel; None without one."""
    reference = REFERENCES.get(kernel)
    return None if reference is None else Path(str(sys.modules[reference.__module__].__file__))
