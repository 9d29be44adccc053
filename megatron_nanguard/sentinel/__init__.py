"""Detect non-finite values: norms before and after the reduction, losses, and the flags that a rank votes with."""

from megatron_nanguard.sentinel.gradient_norms import AfterReduction, BeforeReduction
from megatron_nanguard.sentinel.losses import Losses
from megatron_nanguard.sentinel.random_states import RngStates
from megatron_nanguard.sentinel.vote_flags import Flag, FlagInputs, RaisedScale, flag_tensor

__all__ = [
    "AfterReduction",
    "BeforeReduction",
    "Flag",
    "FlagInputs",
    "Losses",
    "RaisedScale",
    "RngStates",
    "flag_tensor",
]
