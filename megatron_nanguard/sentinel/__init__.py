"""Detect non-finite values: norms before and after the reduction, losses, and the flags that a rank votes with."""

from megatron_nanguard.sentinel.gradient_norms import AfterReduction, BeforeReduction
from megatron_nanguard.sentinel.losses import Losses
from megatron_nanguard.sentinel.random_states import RngStates
from megatron_nanguard.sentinel.vote_flags import Flag, RaisedScale, Suspicions, flag_tensor

__all__ = [
    "AfterReduction",
    "BeforeReduction",
    "Flag",
    "Losses",
    "RaisedScale",
    "RngStates",
    "Suspicions",
    "flag_tensor",
]
