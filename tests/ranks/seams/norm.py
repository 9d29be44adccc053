"""What shows only in the gradient norm, after the decision on the step.

norm_of_the_sum   every rank's own sum of squares is finite; their sum over the ranks is not
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import megatron.core.optimizer.optimizer as optimizers

from tests.ranks.seams.when import is_due, worse


def install() -> None:
    """Stand behind the function that sums over the ranks."""
    optimizers.get_grad_norm_fp32 = summed(optimizers.get_grad_norm_fp32)


def summed(get_grad_norm: Callable[..., Any]) -> Callable[..., Any]:
    def get(*args: Any, **kwargs: Any) -> Any:
        norm = get_grad_norm(*args, **kwargs)
        return worse(math.inf, norm) if is_due("norm_of_the_sum") else norm

    return get
