"""Real, unmodified Megatron on CPU ranks of one machine, no accelerator needed.

    nanguard cpu-run --nproc 8 pretrain_gpt.py ARGS...                              ranks forked, one import
    torchrun --nproc-per-node 8 -m megatron_nanguard --cpu pretrain_gpt.py ARGS...  processes

`mapping/` makes device "cuda" the CPU, `stand_ins/` replaces the functions of Megatron that need more than torch,
`launcher` forks and watches the ranks. Nothing here imports torch before a function is called, and nothing imports
another room.
"""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.cpurun.launcher import launch
from megatron_nanguard.cpurun.mapping import install
from megatron_nanguard.cpurun.script import run_under_torchrun

__all__ = ["install", "launch", "pretrain_script", "run_under_torchrun", "uninstall"]


def uninstall() -> None:
    """Restore torch and Megatron: undo `install` and the stand-ins."""
    from megatron_nanguard.cpurun import mapping, stand_ins

    stand_ins.restore()
    mapping.changed.restore()


def pretrain_script() -> Path:
    """The complete pretrain script that ships here: real Megatron, mock data or .bin/.idx data."""
    return Path(__file__).with_name("pretrain_gpt.py")
