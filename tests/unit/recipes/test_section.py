"""The recipe of CONTRIBUTING.md for a report section, followed to the letter in a copy of the project."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.recipes.project_copy import ProjectCopy

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
from megatron_nanguard.report.html.page import report_html
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
    project = ProjectCopy(tmp_path)
    project.write("megatron_nanguard/report/sections/clocks.py", SECTION)
    project.insert("megatron_nanguard/report/sections/__init__.py", "    causes,", "    clocks,")
    project.insert("megatron_nanguard/report/sections/__init__.py", '    "notes": ', '    "clocks": clocks.describe,')

    done = project.python("-c", REPORT, TERM="dumb")

    assert done.returncode == 0, done.stderr
    text, terminal, page = json.loads(done.stdout)
    assert "\nDevice clocks\n  step  read at 3\n\nRun and step\n" in text
    assert "\nDevice clocks\n  step  read at 3\n" in terminal
    assert '<li><a href="#clocks">Device clocks</a></li>' in page
    assert "<dt>step</dt><dd>read at 3</dd>" in page
