"""The store of the coordination tests, for ranks that meet."""

from tests.unit.coordination.conftest import clients, store

__all__ = ["clients", "store"]
