"""`nanguard schema`: the schema of each kind of file, and the list of the kinds."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import orjson
import pytest

from megatron_nanguard.records.json.file_kinds import FILE_KINDS
from tests.unit.cli.hostile import write_run
from tests.unit.cli.leaving import leave


def test_the_kinds_are_listed_with_the_paths_of_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = leave(capsys, "schema")

    assert (code, err) == (0, "")
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        [name, kind.path] for name, kind in FILE_KINDS.items()
    ]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("incident", "incidents/*/incident.json"),
        ("postmortem", "incidents/*/rank*.json"),
        ("trace", "incidents/*/trace*.json"),
        ("call", "incidents/*/bundle/call.json"),
        ("fingerprint", "fingerprint.json"),
    ],
)
def test_files_of_a_run_fit_the_schema_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, pattern: str
) -> None:
    write_run(tmp_path)
    code, out, err = leave(capsys, "schema", name)

    assert (code, err) == (0, "")
    files = list(tmp_path.glob(f"runs/*/{pattern}"))
    assert files
    for file in files:
        jsonschema.Draft202012Validator(orjson.loads(out)).validate(orjson.loads(file.read_bytes()))


def test_an_unknown_name_is_refused_and_the_known_ones_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = leave(capsys, "schema", "verdict")

    assert (code, out) == (2, "")
    assert "'verdict' is not one of 'incident', 'postmortem'" in err
