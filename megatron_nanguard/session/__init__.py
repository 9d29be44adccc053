"""One attempt of a run: how it starts together, where it writes, what it leaves behind at exit."""

from megatron_nanguard.session.drilling import Drilling
from megatron_nanguard.session.meeting import Meeting
from megatron_nanguard.session.run import Run

__all__ = ["Drilling", "Meeting", "Run"]
