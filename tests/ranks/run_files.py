"""What a guarded run left behind, read as plain JSON and checked against the schemas of the records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from megatron_nanguard.records.json.file_kinds import FILE_KINDS
from megatron_nanguard.records.json.record_schema import schema_of


@dataclass(frozen=True)
class RunFiles:
    """The directory of one guarded run."""

    path: Path

    @classmethod
    def only_one_of(cls, root: Path) -> RunFiles:
        """The single run below a `--nanguard-dir`."""
        (path,) = (root / "runs").iterdir()
        return cls(path)

    @property
    def incidents(self) -> list[str]:
        """Names of the incident directories, in order; none where nothing was reported."""
        return sorted(path.name for path in self.path.glob("incidents/*"))

    def merged(self, step: int) -> dict[str, Any]:
        """`incident.json` of a step."""
        return read(self.path / "incidents" / f"step_{step:08d}" / "incident.json", "incident")

    def postmortems(self, step: int) -> dict[str, dict[str, Any]]:
        """Every rank's post-mortem of a step by the name of its file, in the order of ranks."""
        files = sorted((self.path / "incidents" / f"step_{step:08d}").glob("rank*"))
        return {path.name: read(path, "postmortem") for path in files}

    def statuses(self) -> list[dict[str, Any]]:
        """What every rank wrote at exit, in the order of ranks."""
        return [read(path, "status") for path in sorted(self.path.glob("status/rank*.json"))]

    def drills(self) -> list[dict[str, Any]]:
        """What became of every drill on every rank that it names."""
        return [
            drill for path in self.path.glob("drill/rank*.json") for drill in read(path, "drill_outcomes")["drills"]
        ]


def read(path: Path, kind: str) -> dict[str, Any]:
    """Read one file of a kind that `nanguard schema` lists.

    Raises:
        jsonschema.ValidationError: it does not fit the schema of its kind.
    """
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _validator(kind).validate(content)
    return content


@cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(FILE_KINDS[kind].record))
