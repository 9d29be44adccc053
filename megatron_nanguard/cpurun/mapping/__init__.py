"""Makes device "cuda" the CPU: changes about 200 attributes of torch, which `changed` can restore.

Faked are device queries, streams, memory numbers, the device's random generator, the device of tensors, and nccl.
The numbers are real: torch's CPU kernels compute them, and collectives run on gloo.
"""

from __future__ import annotations

import os
import sys

from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.mapping.accelerator import map_accelerator, map_compiling
from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.mapping.distributed import map_distributed
from megatron_nanguard.cpurun.mapping.factories import map_factories
from megatron_nanguard.cpurun.mapping.generators import map_generators
from megatron_nanguard.cpurun.mapping.queries import map_memory, map_queries
from megatron_nanguard.cpurun.mapping.streams import map_streams
from megatron_nanguard.cpurun.mapping.tensor_methods import map_tensor_methods
from megatron_nanguard.cpurun.mapping.unmapped import refuse_the_rest

_PIECES = (
    map_queries,
    map_streams,
    map_memory,
    map_generators,
    map_factories,
    map_tensor_methods,
    map_compiling,
    map_distributed,
    map_accelerator,
    refuse_the_rest,  # last: it refuses the calls that no other piece has changed
)

changed = ChangedAttributes()


def install() -> None:
    """Map device "cuda" onto the CPU; a second call has no effect.

    Call it before Megatron is imported: Megatron binds `torch.compile` and some collectives at import.

    Raises:
        LaunchRefused: torch already sees an accelerator.
    """
    if changed.is_applied:
        return
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if torch.cuda.is_available():
        raise LaunchRefused("torch sees an accelerator: set CUDA_VISIBLE_DEVICES= (empty) to run on CPU ranks")
    # Megatron requires it on devices older than capability 10; it has no effect on the CPU.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    for piece in _PIECES:
        piece(changed, torch)
