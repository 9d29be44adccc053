"""The store of the coordination tests."""

from tests.unit.coordination.conftest import clients, store

__all__ = ["clients", "store"]
