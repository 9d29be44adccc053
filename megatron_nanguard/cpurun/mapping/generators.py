"""Two random generators: one for the device, one for the CPU, as on a machine with an accelerator.

Calls without a generator draw from torch's default generator. In Megatron nearly all of them draw on the device
(weights, dropout, router noise), so the default generator becomes the device's. A second generator serves the CPU:
`torch.manual_seed`, `get_rng_state`, `set_rng_state`, `initial_seed`, the random factories without a cuda device, and
`Tensor.random_` use it.

`Tensor.random_` is included because a DataLoader draws its seed with it, on TP rank 0 only. If it drew from the
device's generator, dropout would silently differ between the TP ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function
from megatron_nanguard.cpurun.mapping.device_arguments import device_count
from megatron_nanguard.cpurun.mapping.factories import making_on_cpu

DRAWING_FACTORIES = ("rand", "randn", "randint", "randperm")


class DefaultGenerators:
    """`torch.cuda.default_generators`: the device's generator at every index."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._generator


def map_generators(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Split torch's one generator into the device's and the CPU's; both start in the same state.

    Each attribute gets a function of its own: torch._dynamo refuses a bound method that has two names.
    """
    device = torch.default_generator
    cpu = torch.Generator()
    cpu.set_state(device.get_state())
    _map_device_generator(changes, torch, device)
    _map_cpu_generator(changes, torch, device, cpu)
    for name in DRAWING_FACTORIES:
        changes.wrap(torch, name, lambda original: _drawing_from(original, cpu))
    changes.wrap(torch.Tensor, "random_", lambda original: _random_from(original, cpu))


def _map_device_generator(changes: ChangedAttributes, torch: ModuleType, generator: Any) -> None:
    def set_all(states: Iterable[Any]) -> None:
        generator.set_state(next(iter(states)))

    answers = {
        "get_rng_state": lambda device="cuda": generator.get_state(),
        "set_rng_state": lambda new_state, device="cuda": generator.set_state(new_state),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state_all": set_all,
        "manual_seed": lambda seed: generator.manual_seed(int(seed)),
        "manual_seed_all": lambda seed: generator.manual_seed(int(seed)),
        "initial_seed": lambda: generator.initial_seed(),
        "seed": lambda: generator.seed(),
        "seed_all": lambda: generator.seed(),
    }
    changes.put_all(torch.cuda, answers)
    changes.put_all(torch.cuda.random, answers)
    changes.put(torch.cuda, "default_generators", DefaultGenerators(generator))


def _map_cpu_generator(changes: ChangedAttributes, torch: ModuleType, device_generator: Any, cpu: Any) -> None:
    def manual_seed(seed: int) -> Any:
        device_generator.manual_seed(int(seed))  # torch.manual_seed seeds every device too
        return cpu.manual_seed(int(seed))

    def seed_anew() -> int:
        seed = int(cpu.seed())
        device_generator.manual_seed(seed)
        return seed

    answers: dict[str, object] = {
        "manual_seed": manual_seed,
        "seed": seed_anew,
        "initial_seed": lambda: cpu.initial_seed(),
        "get_rng_state": lambda: cpu.get_state(),
        "set_rng_state": lambda new_state: cpu.set_state(new_state),
        "default_generator": cpu,
    }
    changes.put_all(torch, answers)
    changes.put_all(torch.random, answers)


def _drawing_from(original: Function, cpu: Any) -> Function:
    """Draw from the CPU's generator, unless a cuda device or a generator is given."""
    make = making_on_cpu(original)

    def draw(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if kwargs.get("generator") is None and (device is None or str(device) == "cpu"):
            kwargs["generator"] = cpu
        return make(*args, **kwargs)

    return draw


def _random_from(original: Function, cpu: Any) -> Function:
    def random_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("generator") is None and self.device.type == "cpu":
            kwargs["generator"] = cpu
        return original(self, *args, **kwargs)

    return random_
