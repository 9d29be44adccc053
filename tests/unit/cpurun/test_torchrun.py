from __future__ import annotations

import pytest

from megatron_nanguard import cpurun
from megatron_nanguard.cpurun.errors import LaunchRefused


def test_without_torchruns_environment_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)

    with pytest.raises(LaunchRefused, match="nanguard cpu-run --nproc N SCRIPT"):
        cpurun.run_under_torchrun("script.py", [])
