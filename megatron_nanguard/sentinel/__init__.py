"""Notice non-finite values: norms before and after the reduction, losses, and the flags made of them."""

from megatron_nanguard.sentinel.after_reduction import AfterReduction
from megatron_nanguard.sentinel.before_reduction import BeforeReduction
from megatron_nanguard.sentinel.losses import Losses
from megatron_nanguard.sentinel.raised_scale import RaisedScale
from megatron_nanguard.sentinel.random_states import RngStates
from megatron_nanguard.sentinel.vote_flags import Flag, Suspicions, flag_tensor

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
