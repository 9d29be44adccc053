"""Being called when a module of the host arrives."""

from __future__ import annotations

from types import ModuleType

from megatron_nanguard.patching.importing import when_imported
from tests.unit.patching.conftest import Host


def test_an_imported_module_is_handed_over_at_once(host: Host) -> None:
    norms = host.load("norms")
    arrived: list[ModuleType] = []
    when_imported(norms.__name__, arrived.append)
    assert arrived == [norms]


def test_a_module_to_come_is_handed_over_when_it_is_complete(host: Host) -> None:
    arrived: list[tuple[str, bool]] = []
    when_imported(f"{host.package}.norms", lambda module: arrived.append((module.__name__, hasattr(module, "Chained"))))
    assert arrived == []
    host.load("training")
    assert arrived == [(f"{host.package}.norms", True)]


def test_a_function_that_shadows_its_module_is_not_taken_for_it(host: Host) -> None:
    host.write("__init__", "from {package}.step import step")
    host.write("step", "def step():\n    return 1\n")
    arrived: list[object] = []
    when_imported(f"{host.package}.step", arrived.append)
    host.load("step")
    when_imported(f"{host.package}.step", arrived.append)
    assert [type(one) for one in arrived] == [ModuleType, ModuleType]
