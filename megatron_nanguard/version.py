"""The version of this package, alone in a file: `setup.py` reads it as text, without importing anything."""

__version__ = "0.1.0"
