"""What every backend answers; a method is added only if all three can answer it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from megatron_nanguard.records.device import DeviceFacts, OverflowMode


class Device(Protocol):
    """One kind of device, seen from the rank that computes on it."""

    backend: str

    def facts(self, index: int | None = None) -> DeviceFacts:
        """What the device with this number (default: the current one) says of itself."""

    def rng_state(self) -> Tensor:
        """State of the generator that draws dropout: uint8, in host memory.

        Sync: none; the generator lives on the host.
        """

    def set_rng_state(self, state: Tensor) -> None:
        """Put that generator into a state that `rng_state` gave."""

    def free_bytes(self) -> int:
        """Memory that nobody holds, what torch keeps for its own next tensors not counted as free.

        Sync: none.
        """

    def synchronize(self) -> None:
        """Wait for everything launched so far.

        Sync: the host waits for the device.
        """

    def overflow_mode(self) -> OverflowMode:
        """Whether an overflow becomes Inf and NaN, or a large number that no check can tell from a healthy one."""
