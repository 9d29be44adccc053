"""The arguments of the run that an incident is of: what the next experiment must not propose again."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.fingerprint import FINGERPRINT_NAME, Fingerprint
from megatron_nanguard.records.json_file import read_record


def arguments_of_run(directory: Path) -> dict[str, str]:
    """The host's arguments as text; none where the run did not leave them, or they cannot be read.

    Args:
        directory: of the incident, in that of its run.
    """
    try:
        return read_record(Fingerprint, directory.absolute().parent.parent / FINGERPRINT_NAME).arguments
    except PostmortemError:
        return {}
