"""Search by hand: check every forward and backward of chosen modules, and list the parameters with bad gradients.

watch: step 3, rank 5: backward of decoder.layers.1.mlp.activation: grad_input input: 2 NaN of 12, first at [0, 3];
grad_output was finite; saved in nanguard/runs/20260301T101500Z-1f2e/watch/rank00005_step00000003.pt
"""

from megatron_nanguard.watching.gradient_check import check_grads
from megatron_nanguard.watching.manual_watch import watch

__all__ = ["check_grads", "watch"]
