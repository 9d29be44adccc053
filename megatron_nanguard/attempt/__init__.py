"""One attempt of a run: how it starts together, where it writes, what it leaves behind at exit."""

from megatron_nanguard.attempt.attempt import Attempt
from megatron_nanguard.attempt.drilling import Drilling
from megatron_nanguard.attempt.meeting import Meeting
from megatron_nanguard.attempt.options import Options
from megatron_nanguard.attempt.run import Run

__all__ = ["Attempt", "Drilling", "Meeting", "Options", "Run"]
