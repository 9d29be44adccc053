from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._device import DeviceContext

from megatron_nanguard import cpurun
from megatron_nanguard.cpurun import mapping

OWNERS = (
    torch,
    torch.Tensor,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.random,
    torch.cuda.nvtx,
    torch.random,
    torch.distributed,
    torch.accelerator,
    torch.amp.autocast_mode.autocast,
    DeviceContext,
)


def attributes() -> dict[tuple[int, str], Any]:
    return {(index, name): value for index, owner in enumerate(OWNERS) for name, value in vars(owner).items()}


def test_uninstall_puts_every_attribute_back_by_identity() -> None:
    before = attributes()

    cpurun.install()
    during = attributes()
    cpurun.uninstall()
    after = attributes()

    changed = [key for key in before if during[key] is not before[key]]
    assert len(changed) > 150
    assert after.keys() == before.keys()
    assert [key for key in before if after[key] is not before[key]] == []


def test_install_twice_is_install_once() -> None:
    before = attributes()
    cpurun.install()
    during = attributes()

    cpurun.install()

    assert [key for key in during if attributes()[key] is not during[key]] == []
    cpurun.uninstall()
    assert [key for key in before if attributes()[key] is not before[key]] == []


def test_an_accelerator_in_sight_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    with pytest.raises(mapping.LaunchRefused, match="CUDA_VISIBLE_DEVICES"):
        cpurun.install()

    assert not mapping.changed.is_applied
