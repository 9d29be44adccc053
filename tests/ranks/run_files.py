"""What a guarded run left behind, read as plain JSON and checked against the schemas that ship."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

import megatron_nanguard

SCHEMAS = Path(megatron_nanguard.__file__).parent / "records" / "schema"


@dataclass(frozen=True)
class RunFiles:
    """The directory of one attempt."""

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


def read(path: Path, schema: str) -> dict[str, Any]:
    """One file, valid against its schema.

    Raises:
        jsonschema.ValidationError: it is not.
    """
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _validator(schema).validate(content)
    return content


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{schema}.json").read_text(encoding="utf-8")))
