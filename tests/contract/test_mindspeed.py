"""MindSpeed's own adaptor in both orders and with repatch: no patch point of ours is lost, none of theirs is torn.

NANGUARD_MINDSPEED=/src/MindSpeed NANGUARD_MINDSPEED_MEGATRON=/src/Megatron-LM pytest tests/contract/test_mindspeed.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MINDSPEED = os.environ.get("NANGUARD_MINDSPEED")
MEGATRON = os.environ.get("NANGUARD_MINDSPEED_MEGATRON", "")

pytestmark = [
    pytest.mark.skipif(MINDSPEED is None, reason="NANGUARD_MINDSPEED names no tree of MindSpeed"),
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("order", ["adaptor-first", "hooks-first"])
def test_nothing_is_lost_in_any_order(order: str) -> None:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, MINDSPEED, MEGATRON, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_CUDA_ARCH_LIST": "8.0"}
    command = [sys.executable, "-m", "tests.contract.mindspeed_adaptor", order]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = {"declined": {}, "lost": {}, "halves of the reduction are from one package": True}
    assert json.loads(done.stdout.splitlines()[-1]) == [whole] * 3
