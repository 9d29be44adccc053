"""What every backend answers; a method is added only if all three can answer it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from megatron_nanguard.records.device import DeviceFacts, OverflowMode


class Identity(NamedTuple):
    """How others than torch name a device; empty where torch does not know.

    Attributes:
        vendor_id: as the vendor's own tools take it.
        pci_address: as the kernel writes it, such as "0000:3b:00".
    """

    vendor_id: str = ""
    pci_address: str = ""


class Device(Protocol):
    """One kind of device, seen from the rank that computes on it."""

    backend: str

    def take(self, index: int) -> str:
        """Make the device with this number the current one of this process; its name, as torch.device takes it."""

    def facts(self, index: int | None = None) -> DeviceFacts:
        """What the device with this number (default: the current one) says of itself."""

    def identity(self, index: int | None = None) -> Identity:
        """How vendor and kernel name the device with this number (default: the current one)."""

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
