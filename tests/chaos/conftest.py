"""One rank of real Megatron in this process, as the unit tests of an incident have it."""

from tests.unit.conftest import install, log, megatron, world_of_one

__all__ = ["install", "log", "megatron", "world_of_one"]
