"""Tests the devices, links and collectives of a job with known data, without the model.

    outliers
      device  rank 5 (TP 1, PP 1, DP 0)  wrong values: matmul, bfloat16
      link    rank 4 to rank 6           what arrives is not what was sent

`sequence` holds the order: every device against the CPU, every link of the layout, every collective of every group,
then all pairs of a group that failed. After each stage the ranks wait for each other in the store, so that a rank that
hangs is named. `grad_check/` compares the gradients of a user's model over the ranks.
"""

from __future__ import annotations

from megatron_nanguard.screening.parallel_groups import layout_of
from megatron_nanguard.screening.sequence import screen

__all__ = ["layout_of", "screen"]
