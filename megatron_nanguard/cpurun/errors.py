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

    @classmethod
    def of(cls, call: str) -> UnmappedCuda:
        """Error with the name of the call and how to report it.

        Args:
            call: Dotted name below `torch.cuda`, e.g. `memory.caching_allocator_alloc`.
        """
        return cls(
            f"torch.cuda.{call} is not mapped to the CPU: please report torch.cuda.{call} with this traceback "
            "to the megatron_nanguard issue tracker"
        )


class LaunchRefused(CpuRunError):
    """Ranks cannot be started from this process."""
