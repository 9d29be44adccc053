"""Write what the documentation says of the code: pages of docs/, and the figure of the rooms in three pages.

    python -m scripts.write_docs

A test fails when one of them is not what the code says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_nanguard.cli import EXIT_CODES
from megatron_nanguard.patch_points import ESSENTIAL, POINTS
from megatron_nanguard.patching.point import PatchPoint, Target
from megatron_nanguard.records.json.file_kinds import FILE_KINDS
from megatron_nanguard.records.json.record_schema import schema_of
from megatron_nanguard.settings import OPTIONS, PREFIX, flag_of
from scripts import rooms

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MADE = "<!-- Made by scripts/write_docs.py; edit the code instead. -->"

MADE_BELOW = "<!-- The rest of this page is made by scripts/write_docs.py; edit the code instead. -->"


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


def options_table() -> str:
    """The options as the Markdown table of the README."""
    rows = ["| flag | value | meaning |", "|---|---|---|"]
    rows.append(f"| `--{PREFIX}` | | switch the guard on |")
    for option in OPTIONS:
        metavar = option.metadata["metavar"]
        value = "" if metavar is None else f"`{metavar}`"
        rows.append(f"| `{flag_of(option.name)}` | {value} | {option.metadata['help']} |")
    return "\n".join(rows)


def patch_points_page() -> str:
    """What is wrapped, in which releases, why, and what is lost without it."""
    lines = [
        "# Patch points",
        "",
        MADE,
        "",
        "These functions of Megatron are wrapped at run time, and no other. Points of one group are applied together",
        f"or not at all. Without the groups {' and '.join(f'`{name}`' for name in ESSENTIAL)} a run is unguarded,",
        "which is said once at its start. `nanguard doctor` gives the state of each point in an environment.",
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
        family = ", and every override of it in a subclass" if target.family else ""
        yield f"| `{target.path}`{family} | {_releases(target)} | {copies} |"


def _releases(target: Target) -> str:
    called = "" if target.called_until is None else f", called until {target.called_until}"
    return f"{target.since} to {target.until}{called}"


def postmortem_page() -> str:
    """The page of a run's files: its introduction as it is, then one table of keys per kind of file."""
    by_hand, mark, _ = (DOCS / "postmortem.md").read_text(encoding="utf-8").partition(MADE_BELOW)
    if not mark:
        raise ValueError(f"docs/postmortem.md has no line {MADE_BELOW}")
    lines = [by_hand + mark]
    for name, kind in FILE_KINDS.items():
        schema = schema_of(kind.record)
        lines += ["", f"## {name}", "", f"`{kind.path}`: {schema['description']}", ""]
        lines += ["| key | holds | meaning |", "|---|---|---|", *_rows(schema)]
    return "\n".join([*lines, ""])


def _rows(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, form in schema["properties"].items():
        name = f"`{key}`" if key in schema["required"] else f"*`{key}`*"
        yield f"| {name} | {_form(form, schema['$defs'])} | {_cell(form['description'])} |"


def _form(form: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The type of a value in words; a record inside by its name, an enum by its values."""
    if "$ref" in form:
        name = form["$ref"].rpartition("/")[2]
        members = definitions[name].get("oneOf")
        return "number" if name == "Float" else _choice(one["const"] for one in members) if members else f"`{name}`"
    if "anyOf" in form:
        return " or ".join(_form(one, definitions) for one in form["anyOf"])
    if "enum" in form:
        return _choice(form["enum"])
    if "prefixItems" in form:
        return f"[{', '.join(_form(one, definitions) for one in form['prefixItems'])}]"
    if form["type"] == "array":
        return f"list of {_form(form['items'], definitions)}"
    if form["type"] == "object":
        return f"{{name: {_form(form['additionalProperties'], definitions)}}}"
    return {"integer": "integer", "string": "text", "boolean": "true or false", "null": "null"}[form["type"]]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _choice(values: Iterable[object]) -> str:
    return " or ".join(f"`{json.dumps(value)}`" for value in values)


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
