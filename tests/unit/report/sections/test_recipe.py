"""The recipe of CONTRIBUTING.md for a report section, followed to the letter in a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import megatron_nanguard

PACKAGE = Path(megatron_nanguard.__file__).parent

SECTION = '''\
"""The clocks of the devices."""

from __future__ import annotations

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident


def describe(opened: OpenedIncident) -> Block | None:
    """Show the step at which the clocks were read."""
    return Block(phrase("Device clocks"), rows=((phrase("step"), f"read at {opened.incident.step}"),))
'''

REPORT = """\
import io, json
from pathlib import Path

from megatron_nanguard.report import print_report
from megatron_nanguard.report.html import report_html
from megatron_nanguard.report.opened_incident import open_incident
from tests.unit.factories import incident

class Terminal(io.StringIO):
    def isatty(self):
        return True

opened = open_incident(incident(), Path("/data/DIR"))
pipe, terminal = io.StringIO(), Terminal()
print_report(opened, pipe)
print_report(opened, terminal)
print(json.dumps([pipe.getvalue(), terminal.getvalue(), report_html(opened)]))
"""


def test_a_new_file_and_its_line_in_the_table_show_in_text_terminal_and_page(tmp_path: Path) -> None:
    sections = (
        shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        / "report"
        / "sections"
    )
    (sections / "clocks.py").write_text(SECTION)
    table = (sections / "__init__.py").read_text()
    table = table.replace("    causes,\n", "    causes,\n    clocks,\n", 1)
    table = table.replace('    "notes": ', '    "clocks": clocks.describe,\n    "notes": ', 1)
    (sections / "__init__.py").write_text(table)

    environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])}
    done = subprocess.run(
        [sys.executable, "-c", REPORT], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    text, terminal, page = json.loads(done.stdout)
    assert "\nDevice clocks\n  step  read at 3\n\nRun and step\n" in text
    assert "\nDevice clocks\n  step  read at 3\n" in terminal
    assert '<li><a href="#clocks">Device clocks</a></li>' in page
    assert "<dt>step</dt><dd>read at 3</dd>" in page
