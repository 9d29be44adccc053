"""Device "cuda" is the CPU: about 200 attributes of torch, changed in small pieces and put back by `uninstall()`.

What is faked: device queries, streams, memory numbers, the device's random generator, where tensors live, nccl.
What is not: every number is computed by torch's CPU kernels, every collective runs on gloo.
"""

from __future__ import annotations

import os
import sys

from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.mapping.accelerator import map_accelerator
from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.mapping.compiling import map_compiling
from megatron_nanguard.cpurun.mapping.distributed import map_distributed
from megatron_nanguard.cpurun.mapping.factories import map_factories
from megatron_nanguard.cpurun.mapping.generators import map_generators
from megatron_nanguard.cpurun.mapping.memory import map_memory
from megatron_nanguard.cpurun.mapping.queries import map_queries
from megatron_nanguard.cpurun.mapping.streams import map_streams
from megatron_nanguard.cpurun.mapping.tensor_methods import map_tensor_methods
from megatron_nanguard.cpurun.mapping.unmapped import refuse_the_rest

PIECES = (
    map_queries,
    map_streams,
    map_memory,
    map_generators,
    map_factories,
    map_tensor_methods,
    map_compiling,
    map_distributed,
    map_accelerator,
    refuse_the_rest,  # last: it refuses what the others left
)

changed = ChangedAttributes()


def install() -> None:
    """Map device "cuda" onto the CPU; a second call does nothing.

    Call it before Megatron is imported: Megatron binds `torch.compile` and some collectives at import.

    Raises:
        LaunchRefused: torch already sees an accelerator.
    """
    if changed.is_open:
        return
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if torch.cuda.is_available():
        raise LaunchRefused("torch sees an accelerator: set CUDA_VISIBLE_DEVICES= (empty) to run on CPU ranks")
    # Megatron asks for it on devices older than capability 10; it means nothing on the CPU.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    for piece in PIECES:
        piece(changed, torch)


def uninstall() -> None:
    """Put back every attribute that `install()` changed."""
    changed.restore()
