"""The release line of the Megatron that is imported, by which the points are chosen."""

from __future__ import annotations

from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.patching import line_of


def release() -> tuple[int, int] | None:
    """Major and minor number; None where no Megatron core is imported."""
    version = host_program.core_version()
    return None if version is None else line_of(version)
