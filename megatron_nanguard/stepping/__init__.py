"""A step under guard: who is watched in it, from the schedule's call to the vote, and what follows from that."""

from megatron_nanguard.stepping.steps import Steps
from megatron_nanguard.stepping.wards import Wards

__all__ = ["Steps", "Wards"]
