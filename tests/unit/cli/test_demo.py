"""`nanguard demo` where it cannot write; what it shows is tested on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.leaving import leave


def test_a_directory_that_cannot_be_made_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    code, out, err = leave(capsys, "demo", "--dir", tmp_path / "file")

    assert (code, out) == (2, "")
    assert err == f"nanguard: --dir: {tmp_path}/file cannot be used: File exists\n"
