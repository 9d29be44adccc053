"""Write what the documentation says of the code: pages of docs/, and the figure of the rooms in three pages.

    python -m scripts.write_docs

A test fails when one of them is not what the code says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_nanguard.cli import EXIT_CODES
from megatron_nanguard.patch_points import ESSENTIAL, POINTS
from megatron_nanguard.patching import PatchPoint, Target
from megatron_nanguard.records.write_schema import SCHEMA_DIRECTORY
from megatron_nanguard.settings import options_table
from scripts import rooms

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MADE = "<!-- Made by scripts/write_docs.py; edit the code instead. -->"

FILES = {
    "incident.json": "incidents/step_NNNNNNNN/incident.json",
    "postmortem.json": "incidents/step_NNNNNNNN/rankNNNNN_tpTppPdpD.json",
    "trace.json": "incidents/step_NNNNNNNN/traceNNNNN_tpTppPdpD.json",
    "call.json": "incidents/step_NNNNNNNN/bundle/call.json",
    "answer.json": "incidents/step_NNNNNNNN/peer/rankNNNNN/answer.json",
    "capture.json": "incidents/step_NNNNNNNN/capture/rankNNNNN.json",
    "param_map.json": "param_map_tpTppPdpD.json",
    "fingerprint.json": "fingerprint.json",
    "status.json": "status/rankNNNNN.json",
    "drill.json": "drill.json",
    "drill_outcomes.json": "drill/rankNNNNN.json",
    "screening.json": "nanguard screen --json FILE",
}
"""Where each kind of file lies in the directory of a run, the most read first; that of a screening is no run's."""


def options_page() -> str:
    """Options and exit codes."""
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(
        [
            "# Options",
            "",
            MADE,
            "",
            "Given on the command line of the training script. The environment variable of `--nanguard-NAME` is",
            "`NANGUARD_NAME`; the command line wins. `NANGUARD=1` is `--nanguard`, and `NANGUARD=0` beats everything.",
            "A value that cannot be used ends the start with code 2 and a line that names the flag.",
            "",
            options_table(),
            "",
            "## Exit codes of `nanguard`",
            "",
            "| code | meaning |",
            "|---|---|",
            *codes,
            "",
        ]
    )


def patch_points_page() -> str:
    """What is wrapped, in which releases, why, and what is lost without it."""
    lines = [
        "# Patch points",
        "",
        MADE,
        "",
        "These functions of Megatron are wrapped at run time, and no other. Points of one group are applied together",
        f"or not at all. Without the groups {' and '.join(f'`{name}`' for name in ESSENTIAL)} a run is unguarded,",
        "which is said once at its start. `nanguard doctor` says how each point stands in an environment.",
    ]
    for point in POINTS:
        lines += ["", *_point(point)]
    return "\n".join([*lines, ""])


def _point(point: PatchPoint) -> Iterator[str]:
    yield f"## {point.name}"
    yield ""
    yield f"Group `{point.group}`. Why: {point.why}."
    yield f"Without it is lost: {point.lost}."
    yield ""
    yield "| function | Megatron core | also held by name in |"
    yield "|---|---|---|"
    for target in point.targets:
        copies = ", ".join(f"`{copy}`" for copy in target.copies)
        yield f"| `{target.path}` | {_releases(target)} | {copies} |"


def _releases(target: Target) -> str:
    called = "" if target.called_until is None else f", called until {target.called_until}"
    return f"{target.since} to {target.until}{called}"


def postmortem_page() -> str:
    """Every key of every file, from the schemas."""
    schemas = {name: json.loads((SCHEMA_DIRECTORY / name).read_text(encoding="utf-8")) for name in FILES}
    lines = [
        "# Files of a run",
        "",
        MADE,
        "",
        "Every file is JSON, written under a temporary name and then renamed. JSON has no NaN and no Inf: such a",
        'number is written as `{"$float": "nan"}`, `"inf"` or `"-inf"`. The JSON Schemas come with the package, in',
        "`megatron_nanguard/records/schema/`. Keys in *italics* may be left out. No diagnosis reads files of a drill.",
        "",
        "| file of a run | holds |",
        "|---|---|",
    ]
    for name, place in FILES.items():
        lines.append(f"| `{place}` | [{_sentence(schemas[name]['description'])}](#{_anchor(name)}) |")
    inside: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        titles = _titles(name, schemas)
        lines += ["", f"## {name}", "", _sentence(schema["description"]), "", *_table(schema, titles)]
        for inner, title in titles.items():
            inside.setdefault(title, list(_definition(schema["$defs"][inner], titles)))
    lines += ["", "## Records inside"]
    for title, text in sorted(inside.items()):
        lines += ["", f"### {title}", "", *text]
    return "\n".join([*lines, ""])


def _titles(file: str, schemas: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Headings of the records inside a file: their name, with the file where another file has another of that name."""
    others = [schema["$defs"] for schema in schemas.values()]
    return {
        name: name if all(each.get(name, own) == own for each in others) else f"{name} in {file}"
        for name, own in schemas[file]["$defs"].items()
        if name != "Float"
    }


def _definition(definition: dict[str, Any], titles: Mapping[str, str]) -> Iterator[str]:
    yield _sentence(definition["description"])
    yield ""
    if "oneOf" in definition:
        yield "| value | means |"
        yield "|---|---|"
        for member in definition["oneOf"]:
            yield f"| `{member['const']}` | {_cell(member['description'])} |"
    else:
        yield from _table(definition, titles)


def _table(record: dict[str, Any], titles: Mapping[str, str]) -> Iterator[str]:
    yield "| key | holds | meaning |"
    yield "|---|---|---|"
    for key, form in record["properties"].items():
        name = f"`{key}`" if key in record["required"] else f"*`{key}`*"
        yield f"| {name} | {_cell(_form(form, titles))} | {_cell(form['description'])} |"


def _form(form: dict[str, Any], titles: Mapping[str, str]) -> str:
    """The type of a value in words."""
    if "$ref" in form:
        name = form["$ref"].rpartition("/")[2]
        return "number" if name == "Float" else f"[{name}](#{_anchor(titles[name])})"
    if "anyOf" in form:
        return " or ".join(_form(one, titles) for one in form["anyOf"])
    if "enum" in form:
        return " or ".join(f"`{json.dumps(one)}`" for one in form["enum"])
    if "prefixItems" in form:
        return f"[{', '.join(_form(one, titles) for one in form['prefixItems'])}]"
    if form["type"] == "array":
        return f"list of {_form(form['items'], titles)}"
    if form["type"] == "object":
        return f"{{name: {_form(form['additionalProperties'], titles)}}}"
    return {"integer": "integer", "string": "text", "boolean": "true or false", "null": "null"}[form["type"]]


def _anchor(title: str) -> str:
    """The anchor that Markdown renderers make of a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "patch-points.md": patch_points_page,
    "postmortem.md": postmortem_page,
}

PAGES_WITH_FIGURE = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")
"""Each has one block of the language `rooms`."""


def with_figure(page: str) -> str:
    """A page with the figure of the rooms as it is now."""
    return re.sub(r"```rooms\n.*?```", f"```rooms\n{rooms.figure()}\n```", page, flags=re.DOTALL)


if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text(), encoding="utf-8")
    for page in PAGES_WITH_FIGURE:
        path = ROOT / page
        path.write_text(with_figure(path.read_text(encoding="utf-8")), encoding="utf-8")
