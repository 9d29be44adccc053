"""One optimizer of one rank of real Megatron under guard, for every test of an incident."""

from tests.unit.guarded_run.watched import handshake, watch

__all__ = ["handshake", "watch"]
