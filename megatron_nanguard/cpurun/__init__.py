"""Real, unmodified Megatron on CPU ranks of one machine, no accelerator needed.

    nanguard cpu-run --nproc 8 pretrain_gpt.py ARGS...                              ranks forked, one import
    torchrun --nproc-per-node 8 -m megatron_nanguard --cpu pretrain_gpt.py ARGS...  processes

`mapping/` makes device "cuda" the CPU, `stand_ins/` replaces the functions of Megatron that need more than torch,
`launcher` forks and watches the ranks. Nothing here imports torch before a function is called, and nothing imports
another room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from megatron_nanguard.cpurun.preload import PRELOAD


def install() -> None:
    """Map device "cuda" onto the CPU in this process; call it before Megatron is imported."""
    from megatron_nanguard.cpurun import mapping

    mapping.install()


def after_import() -> None:
    """Apply the stand-ins; call it after Megatron is imported."""
    from megatron_nanguard.cpurun import stand_ins

    stand_ins.after_import()


def uninstall() -> None:
    """Undo `install` and `after_import`."""
    from megatron_nanguard.cpurun import mapping, stand_ins

    stand_ins.restore()
    mapping.uninstall()


def launch(
    nproc: int,
    script: str,
    args: Sequence[str],
    *,
    timeout: float | None = None,
    show: Collection[int] | None = None,
    in_rank: Callable[[], None] | None = None,
    preload: Sequence[str] = PRELOAD,
) -> int:
    """Fork `nproc` ranks that run SCRIPT, and return the exit code of the first that fails; see `launcher.launch`."""
    from megatron_nanguard.cpurun import launcher

    return launcher.launch(nproc, script, args, timeout=timeout, show=show, in_rank=in_rank, modules=preload).code


def run_under_torchrun(script: str, args: Sequence[str], in_rank: Callable[[], None] | None = None) -> int:
    """Run SCRIPT as the rank that torchrun started, and return its exit code; see `script.run_under_torchrun`."""
    from megatron_nanguard.cpurun import script as script_file

    return script_file.run_under_torchrun(script, args, in_rank)


def pretrain_script() -> Path:
    """The complete pretrain script that ships here: real Megatron, mock data or .bin/.idx data."""
    return Path(__file__).with_name("pretrain_gpt.py")
