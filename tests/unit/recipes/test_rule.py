"""The recipe of CONTRIBUTING.md for a rule, followed to the letter in a copy of the project."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.recipes.project_copy import ProjectCopy

MEMBER = """\
    COSMIC_RAY = (
        "cosmic_ray",
        Family.HARDWARE,
        phrase("cosmic ray"),
        phrase("A particle flipped a bit."),
    )
"""

RULE = '''\
"""A particle: more of them come in step 3."""

from __future__ import annotations

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, Scales
from megatron_nanguard.records.phrase import phrase


def judge(case: Case, scales: Scales) -> None:
    """Ask for the step."""
    if case.incident.step == 3:
        scales.speaks_for(DECISIVE, phrase("step {step} is one of theirs", step=case.incident.step))
'''

CHINESE = """\
  "cosmic ray": "宇宙射线",
  "A particle flipped a bit.": "粒子翻转了一个比特。",
  "step {step} is one of theirs": "第 {step} 步正是其中之一",
"""

REPORT = """\
import json
from pathlib import Path

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.report.html.page import report_html
from megatron_nanguard.report.opened_incident import open_incident
from tests.unit.factories import incident
from tests.unit.report.factories import report_text

def judged(step):
    return from_json(Incident, to_json(conclude(incident(step=step), ())))

there, absent = judged(3), judged(4)
here = Path("/data/DIR")
print(json.dumps({
    "causes": [[cause.cause for cause in each.causes] for each in (there, absent)],
    "next": there.causes[0].next,
    "text": report_text(there, here),
    "chinese": report_text(there, here, "zh"),
    "page": report_html(open_incident(there, here)),
}))
"""


def test_a_member_of_the_enum_a_file_and_its_line_in_the_tuple_are_seen_through_to_every_report(tmp_path: Path) -> None:
    project = ProjectCopy(tmp_path)
    project.insert("megatron_nanguard/records/causes.py", "    CHECKER_ARTIFACT = (", MEMBER)
    rules = "megatron_nanguard/diagnosis/rules/__init__.py"
    project.write("megatron_nanguard/diagnosis/rules/cosmic_ray.py", RULE)
    project.insert(rules, "    data,", "    cosmic_ray,")
    line = "        Rule(Cause.COSMIC_RAY, cosmic_ray.judge),"
    project.insert(rules, "        Rule(Cause.CHECKER_ARTIFACT, checker_artifact.judge, prior=-2.0),", line)
    project.insert("megatron_nanguard/report/lang/zh/diagnosis.json", '  "loss or mask": ', CHINESE)

    done = project.python("-c", REPORT)

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["causes"] == [["cosmic_ray"], ["undecided"]]
    assert shown["next"].startswith("the same steps with CUDA_LAUNCH_BLOCKING=1")
    for words in ("cosmic ray (very likely, 0.92)", "A particle flipped a bit.", "step 3 is one of theirs"):
        assert words in shown["text"] and words in shown["page"]
    for words in ("宇宙射线", "粒子翻转了一个比特。", "第 3 步正是其中之一"):
        assert words in shown["chinese"]
