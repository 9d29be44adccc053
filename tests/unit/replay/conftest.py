"""A recorded trainer for every test of the room that asks for it."""

from tests.unit.replay.recorded import recorded

__all__ = ["recorded"]
