"""What every backend provides, a method only if all three can implement it; and what the two accelerators share."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from megatron_nanguard.records.machine.device import DeviceFacts, OverflowMode


class Identity(NamedTuple):
    """Names of a device outside of torch; empty where torch does not know them.

    Attributes:
        vendor_id: for the vendor's tools.
        pci_address: as the kernel writes it, such as "0000:3b:00".
    """

    vendor_id: str = ""
    pci_address: str = ""


class Device(Protocol):
    """One kind of device, as the rank that computes on it uses it."""

    backend: str

    def take(self, index: int) -> str:
        """Make the device with this number the current one; returns its name for torch.device."""

    def facts(self, index: int | None = None) -> DeviceFacts:
        """Properties of the device with this number (default: the current one)."""

    def identity(self, index: int | None = None) -> Identity:
        """Names that the vendor and the kernel use for the device with this number (default: the current one)."""

    def rng_state(self) -> Tensor:
        """State of the generator that draws dropout: uint8, in host memory.

        Sync: none; the generator lives on the host.
        """

    def set_rng_state(self, state: Tensor) -> None:
        """Set that generator to a state from `rng_state`."""

    def free_bytes(self) -> int:
        """Memory that is not allocated; memory in torch's cache does not count as free.

        Sync: none.
        """

    def synchronize(self) -> None:
        """Wait for all work launched so far.

        Sync: the host waits for the device.
        """

    def overflow_mode(self) -> OverflowMode:
        """Whether an overflow becomes Inf or NaN, or a large finite number that checks cannot find."""


class Accelerator:
    """What torch.cuda and torch_npu offer under the same names.

    Attributes:
        backend: as for `Device`.
        torch_api: torch.cuda, or the module of torch_npu in its place.
    """

    backend: str
    torch_api: Any

    def take(self, index: int) -> str:
        """Make the device with this number the current one."""
        self.torch_api.set_device(index)
        return f"{self.backend}:{index}"

    def rng_state(self) -> Tensor:
        """State of the current device's default generator."""
        state: Tensor = self.torch_api.get_rng_state()
        return state

    def set_rng_state(self, state: Tensor) -> None:
        """Put the current device's default generator into an earlier state."""
        self.torch_api.set_rng_state(state)

    def free_bytes(self) -> int:
        """Memory of the current device that no process has taken."""
        return int(self.torch_api.mem_get_info()[0])

    def synchronize(self) -> None:
        """Wait for all streams of the current device.

        Sync: the host waits for the device.
        """
        self.torch_api.synchronize()
