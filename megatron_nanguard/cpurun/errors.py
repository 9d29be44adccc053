"""Errors of this room, which imports no other one.

CpuRunError
    UnmappedCuda    a torch.cuda call that has no counterpart on the CPU
    LaunchRefused   ranks cannot be started here
"""

from __future__ import annotations


class CpuRunError(RuntimeError):
    """Megatron cannot be run on CPU ranks as asked."""


class UnmappedCuda(CpuRunError):
    """A torch.cuda call was made that the mapping does not cover."""


class LaunchRefused(CpuRunError):
    """Ranks cannot be started from this process."""
