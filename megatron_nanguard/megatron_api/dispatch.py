"""Whether the reduction of a bucket group is on its way."""

from __future__ import annotations

from typing import Any


def is_dispatched(group: Any) -> bool:
    """Whether a reduction was started and not yet waited for, so that the gradients are no longer this rank's own.

    Source: megatron/core/distributed/param_and_grad_buffer.py: ``grad_reduce_handle``, before 0.10
        ``communication_handle``; from 0.16 on ``start_grad_sync`` may be called again in the first batch
    """
    handle = getattr(group, "grad_reduce_handle", getattr(group, "communication_handle", None))
    return handle is not None
