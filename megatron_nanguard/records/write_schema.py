"""Write the JSON Schemas that ship with the package: `python -m megatron_nanguard.records.write_schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson

from megatron_nanguard.records.arbitration import PeerAnswer
from megatron_nanguard.records.bundle import SavedCall
from megatron_nanguard.records.capture import CaptureFile
from megatron_nanguard.records.drill import DrillFile, DrillPlan
from megatron_nanguard.records.fingerprint import Fingerprint
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json_schema import schema_of
from megatron_nanguard.records.parameters import ParameterMapFile
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.records.screening import Screening
from megatron_nanguard.records.status import Status
from megatron_nanguard.records.trace import RankTrace

SCHEMA_DIRECTORY: Final = Path(__file__).parent / "schema"
FILES: Final[dict[str, type]] = {
    "answer.json": PeerAnswer,
    "call.json": SavedCall,
    "capture.json": CaptureFile,
    "drill.json": DrillPlan,
    "drill_outcomes.json": DrillFile,
    "fingerprint.json": Fingerprint,
    "incident.json": Incident,
    "param_map.json": ParameterMapFile,
    "postmortem.json": Postmortem,
    "screening.json": Screening,
    "status.json": Status,
    "trace.json": RankTrace,
}
"""Every kind of file that is a record of this room, and its class."""


def schema_text(cls: type) -> bytes:
    """The schema of one record, as it stands in its file."""
    return orjson.dumps(schema_of(cls), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def write_schemas(directory: Path = SCHEMA_DIRECTORY) -> None:
    """Write one schema per kind of file."""
    directory.mkdir(exist_ok=True)
    for name, cls in FILES.items():
        (directory / name).write_bytes(schema_text(cls))


if __name__ == "__main__":
    write_schemas()
