"""One optimizer of one rank of real Megatron under guard, for every test of the room."""

from tests.unit.guarded_run.watched import meeting, watch

__all__ = ["meeting", "watch"]
