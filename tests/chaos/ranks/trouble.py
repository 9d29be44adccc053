"""Script: guarded pretraining on two ranks in which the variable TROUBLE names what happens, on the ranks in AT_FAULT.

The gradient of rank 1 is NaN in step 2, and in step 3 too where TWICE is set. When training is over, every rank prints
whether Megatron's own check is on and a digest of its weights.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import megatron.training.training as host
from megatron.core.transformer.mlp import MLP

import megatron_nanguard
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.cpurun import pretrain_gpt

RANK = int(os.environ["RANK"])
BAD_STEPS = (2, 3) if os.environ.get("TWICE") else (2,)


def nothing() -> None:
    """The twin."""


def disk_full_in_files() -> None:
    """No file can be written from the stage `files` on."""
    _begin_with("files", lambda: setattr(Path, "write_bytes", _disk_full))


def disk_full() -> None:
    """No file can be written."""
    Path.write_bytes = _disk_full  # type: ignore[method-assign]


def directory_of_its_own() -> None:
    """The directory is not the one of the other ranks, as on hosts without a shared file system."""
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    os.chdir(elsewhere)


def slow_digests() -> None:
    """The capture of this rank takes longer than a stage may."""
    from megatron_nanguard.incident.collecting import Collector

    def slow() -> None:
        write = Path.write_bytes

        def write_slowly(path: Path, data: bytes) -> int:
            time.sleep(60.0)
            return write(path, data)

        Path.write_bytes = write_slowly  # type: ignore[method-assign]

    collect = Collector.collect
    Collector.collect = lambda collector: (slow(), collect(collector))[1]  # type: ignore[method-assign]


def fail_in_audit() -> None:
    """A fault of ours."""
    from megatron_nanguard.incident import auditing

    auditing.audit = _raise


def fail_in_merging() -> None:
    """A fault of ours."""
    from megatron_nanguard.incident import merged_file

    merged_file.conclude = _raise


def fail_in_capture() -> None:
    """A fault of ours."""
    from megatron_nanguard.incident.collecting import Collector

    Collector.collect = _raise  # type: ignore[method-assign]


def exit_in_replay() -> None:
    """The script ends its process, without a complaint, when its forward runs again."""
    _begin_with("plain replay", lambda: setattr(MLP, "forward", lambda *args, **kwargs: sys.exit(0)))


def interrupt_in_replay() -> None:
    """As if by Ctrl-C."""
    _begin_with("plain replay", lambda: setattr(MLP, "forward", _interrupt))


def _begin_with(stage: str, begin: Callable[[], None]) -> None:
    original = Watchdog.stage

    def begun(dog: Watchdog, name: str, **more: Any) -> None:
        original(dog, name, **more)
        if name == stage:
            begin()

    Watchdog.stage = begun  # type: ignore[method-assign]


def _disk_full(*args: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise LookupError("planted by the test")


def _interrupt(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


def bad_in_its_steps(get_batch: Callable[..., Any]) -> Callable[..., Any]:
    """The loss mask of rank 1 holds a NaN in the bad steps."""

    def taken(*args: Any, **kwargs: Any) -> Any:
        batch = get_batch(*args, **kwargs)
        if RANK == 1 and host.get_args().curr_iteration + 1 in BAD_STEPS:
            batch["loss_mask"] = batch["loss_mask"] * math.nan
        return batch

    return taken


def train_and_tell(train: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's training loop, and two lines at its end."""

    def training(forward_step: Any, chunks: Any, *args: Any, **kwargs: Any) -> Any:
        result = train(forward_step, chunks, *args, **kwargs)
        print("bucket check", [chunk.ddp_config.check_for_nan_in_grad for chunk in chunks])
        values = [param.detach().float().numpy().tobytes() for chunk in chunks for param in chunk.parameters()]
        print("weights", hashlib.sha256(b"".join(values)).hexdigest())
        return result

    return training


host.train = train_and_tell(host.train)
pretrain_gpt.get_batch = bad_in_its_steps(pretrain_gpt.get_batch)
if os.environ["RANK"] in os.environ["AT_FAULT"].split():
    globals()[os.environ["TROUBLE"]]()
megatron_nanguard.enable()
pretrain_gpt.main()
