"""Turn random states into a record and named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_nanguard.records.step.capture import CapturedRandom
from megatron_nanguard.sentinel.random_states import RngStates

PYTHON, NUMPY, TORCH, DEVICE, TRACKER = (
    f"random/{part}" for part in ("python", "numpy", "torch", "device", "tracker/")
)


def take_apart(states: RngStates) -> tuple[CapturedRandom, dict[str, Tensor]]:
    """Return the numbers of each state as a tensor, and the rest as a record."""
    version, numbers, gauss = states.python
    tensors = {PYTHON: torch.tensor(numbers), TORCH: states.torch_cpu, DEVICE: states.device}
    tensors |= {TRACKER + name: state for name, state in states.tracker.items()}
    numpy = None
    if states.numpy is not None:
        name, keys, *rest = states.numpy
        tensors[NUMPY] = torch.tensor(keys.tolist())
        numpy = (str(name), int(rest[0]), int(rest[1]), float(rest[2]))
    return CapturedRandom(version, gauss, numpy, tuple(states.tracker), states.current), tensors


def put_together(record: CapturedRandom, tensors: Mapping[str, Tensor]) -> RngStates:
    """Turn record and tensors back into random states.

    Raises:
        KeyError: a tensor is missing.
    """
    numpy = None
    if record.numpy is not None:
        name, *rest = record.numpy
        numpy = (name, tensors[NUMPY].to(torch.uint32).numpy(), *rest)
    return RngStates(
        python=(record.python_version, tuple(tensors[PYTHON].tolist()), record.python_gauss),
        numpy=numpy,
        torch_cpu=tensors[TORCH],
        device=tensors[DEVICE],
        tracker={name: tensors[TRACKER + name] for name in record.tracker},
        current=record.current,
    )
