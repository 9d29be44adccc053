"""What we know, as frozen dataclasses: no tensor, no module, no loose dict crosses a rank or leaves a run.

Every file of a run is one record of this room in its JSON form; `file_kinds` lists them. `nanguard schema NAME` prints
the JSON Schema of one of them, made from the type hints and the docstrings of the classes.
"""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 1
"""Stands in every file; raised when a reader of the old form could misread the new one."""
