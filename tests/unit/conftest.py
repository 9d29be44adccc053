"""What several rooms' tests stand on: our log, and one rank of real Megatron."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.guarded import Install


class Log(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What our logger says, in place of its own handlers."""
    logger, kept = logging.getLogger("megatron_nanguard"), Log()
    monkeypatch.setattr(logger, "handlers", [kept])
    return kept


@pytest.fixture(scope="module")
def world_of_one() -> Iterator[None]:
    """A process group of this process alone, on gloo and a real store."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def megatron(world_of_one: None) -> Iterator[Any]:
    """Megatron core on one CPU rank with its parallel groups, untouched by our patch points."""
    import megatron_nanguard
    from megatron_nanguard import cpurun

    megatron_nanguard.disable()
    cpurun.install()
    import megatron.core.distributed
    import megatron.core.optimizer
    import megatron.core.parallel_state

    megatron.core.parallel_state.initialize_model_parallel()
    yield megatron
    megatron.core.parallel_state.destroy_model_parallel()
    cpurun.uninstall()


@pytest.fixture
def install(megatron: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    """Installs guards that write into the test's directory, until the test is over."""
    from tests.unit.guarded import installing

    yield from installing(monkeypatch, tmp_path)
