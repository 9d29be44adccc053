"""Process groups: gloo takes the place of nccl, without the options that it does not know.

Only names of `torch.distributed` are changed, never those of `distributed_c10d`: its coalescing manager tells
collectives apart by identity.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function


def map_distributed(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Wrap the functions that make process groups, and the barrier, which takes device numbers."""
    changes.wrap(torch.distributed, "init_process_group", _starting)
    changes.wrap(torch.distributed, "new_group", _grouping)
    changes.wrap(torch.distributed, "barrier", _waiting)


def _gloo(backend: Any) -> Any:
    return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend


def _starting(original: Function) -> Function:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        kwargs.pop("pg_options", None)
        kwargs.pop("device_id", None)
        return original(_gloo(backend) or "gloo", *args, **kwargs)

    return init_process_group


def _grouping(original: Function) -> Function:
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs.pop("device_id", None)
        return original(ranks, timeout, _gloo(backend), None, *args, **kwargs)

    return new_group


def _waiting(original: Function) -> Function:
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, **kwargs: Any) -> Any:
        return original(group=group, async_op=async_op, **kwargs)

    return barrier
