"""What one rank tells another and a run tells its report, as frozen dataclasses: never a tensor, module or loose dict.

Every file of a run is one record of this room in its JSON form; `json/file_kinds.py` lists them. `nanguard schema NAME`
prints the JSON Schema of one of them, made from the type hints and the docstrings of the classes.
"""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 1
"""Written in every file; raised when a reader of the old form could misread the new one."""
