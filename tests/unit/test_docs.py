"""The documentation: its made pages are fresh, its links lead somewhere, its flags and messages exist."""

from __future__ import annotations

import ast
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import click
import pytest

import megatron_nanguard
from megatron_nanguard.cli import COMMANDS
from megatron_nanguard.records.json.fields import fields_of
from megatron_nanguard.records.json.file_kinds import FILE_KINDS
from megatron_nanguard.settings import OPTIONS, PREFIX, flag_of
from scripts import write_docs
from tests.documents import MARKS, PAGES, ROOT, Block, blocks, without_blocks

PACKAGE = Path(megatron_nanguard.__file__).parent
OUR_FLAGS = {f"--{PREFIX}", *(flag_of(option.name) for option in OPTIONS)}
ON_THE_COMMAND_LINE = re.compile(r"--nanguard[\w-]*")
BASH = [block for block in blocks() if block.language == "bash"]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def name_of(block: Block) -> str:
    return f"{block.page}: {block.text.splitlines()[0][:40]}"


# ---------------------------------------------------------------- made pages


@pytest.mark.parametrize("page", write_docs.PAGES)
def test_a_page_that_is_made_says_what_the_code_says(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == write_docs.PAGES[page](), (
        "stale: run python -m scripts.write_docs"
    )


@pytest.mark.parametrize("page", write_docs.PAGES_WITH_FIGURE)
def test_the_figure_of_the_rooms_is_that_of_the_table(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("```rooms\n") == 1
    assert write_docs.with_figure(text) == text, "stale: run python -m scripts.write_docs"


def test_the_reference_of_files_lists_the_keys_of_every_kind() -> None:
    page = (ROOT / "docs" / "postmortem.md").read_text(encoding="utf-8")
    for name, kind in FILE_KINDS.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| \*?`(\w+)`", section, flags=re.MULTILINE) == [
            key for _, key, _, _ in fields_of(kind.record)
        ]


def test_the_introduction_of_a_page_stays_when_its_tables_are_made() -> None:
    assert write_docs.postmortem_page().startswith("# Files of a run\n\nA run writes into ")


def test_the_figure_is_a_drawing_with_a_title_for_both_backgrounds() -> None:
    path = ROOT / "docs" / "how-it-works.svg"
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
    assert {"title", "desc", "rect", "text"} <= tags
    assert not tags & {"script", "image", "foreignObject"}
    assert "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")


def test_the_walk_passes_twenty_files_at_most_and_each_of_them_once() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    walk = re.findall(r"^\| \d+ \| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert 10 < len(walk) <= 20
    assert len(walk) == len(set(walk))
    assert [file for file in walk if not (PACKAGE / file).is_file()] == []


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            lost.append(link)
    assert lost == []


def anchors_of(page: Path) -> set[str]:
    """Anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_first_one() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"({page})" not in index) == []


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("block", BASH, ids=name_of)
def test_a_block_of_commands_is_bash_with_known_marks(block: Block) -> None:
    assert {mark for mark in block.marks if not re.fullmatch(r"exits-\d+", mark)} <= MARKS
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", BASH, ids=name_of)
def test_the_flags_in_a_block_exist(block: Block) -> None:
    for words in block.commands:
        assert [word for word in words if ON_THE_COMMAND_LINE.match(word) and flag(word) not in OUR_FLAGS] == []
        check_command(words)


def flag(word: str) -> str:
    return word.partition("=")[0]


def check_command(words: list[str]) -> None:
    """Let click parse what follows our name, which says where it knows no such option."""
    if words[0] == "nanguard":
        ours = words[1:]
    elif "megatron_nanguard" in words and words[words.index("megatron_nanguard") - 1] == "-m":
        ours = words[words.index("megatron_nanguard") + 1 :]
    else:
        return
    if ours[0] not in COMMANDS:
        assert ours[0].endswith(".py"), f"{ours[0]} is no command"
        return
    command: click.Command = import_module(f"megatron_nanguard.cli.{ours[0].replace('-', '_')}").command
    command.make_parser(click.Context(command, **command.context_settings)).parse_args(ours[1:])


def test_a_flag_that_does_not_exist_is_found() -> None:
    wrong = Block("page", "bash", frozenset(), "nanguard report nanguard --pdf incident.pdf")
    with pytest.raises(click.NoSuchOption):
        check_command(next(wrong.commands))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_an_option_that_is_not_there(page: Path) -> None:
    named = set(ON_THE_COMMAND_LINE.findall(page.read_text(encoding="utf-8")))
    assert sorted(named - OUR_FLAGS - {"--nanguard-NAME"}) == []


# ---------------------------------------------------------------- messages

TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"


def test_the_messages_that_are_explained_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([^|]+)` \|", TROUBLESHOOTING.read_text(encoding="utf-8"), flags=re.MULTILINE)
    said = "\n".join(constants())
    parts = [(row, part.strip(" :;(")) for row in rows for part in row.split("...") if part.strip(" :;(")]
    assert len(rows) > 40
    assert [row for row, part in parts if part not in said] == []


def constants() -> list[str]:
    """Every text in the code, as far as it does not vary."""
    found = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(one.value if isinstance(one, ast.Constant) else "\n" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value.replace("%s", "\n").replace("%d", "\n").replace("%r", "\n"))
    return found


def test_every_line_of_the_log_is_explained() -> None:
    page = re.sub(r"\s+", " ", TROUBLESHOOTING.read_text(encoding="utf-8"))
    unexplained = [
        text
        for text in logged()
        if not any(part in page for part in re.split(r"%\w+", text) if len(part.strip(" :;,.()")) > 3)
    ]
    assert unexplained == []


def logged() -> list[str]:
    """Formats of the lines that go to the user's log, where they stand as they are."""
    found = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("info", "warning", "error")
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value != "%s"
            ):
                found.append(str(node.args[0].value))
    return found


# ---------------------------------------------------------------- two languages


def shape_of(page: Path) -> dict[str, object]:
    """What two translations of one page have in common."""
    prose = without_blocks(page)
    tables = re.findall(r"(?:^\|.*\n)+", prose, flags=re.MULTILINE)
    return {
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, flags=re.MULTILINE)],
        "tables": [[row.count(" | ") for row in table.splitlines()] for table in tables],
        "first cells": [
            row.split(" | ")[0] for table in tables for row in table.splitlines() if row.startswith("| `--")
        ],
        "blocks": [block.text for block in blocks() if block.page == page.name],
        "links": sorted(set(re.findall(r"\]\(((?!README)[^)]+)\)", prose))),
        "commands": sorted(set(re.findall(r"`(nanguard [a-z-]+)", prose))),
    }


def test_the_chinese_readme_has_what_the_english_one_has() -> None:
    assert shape_of(CHINESE) == shape_of(ENGLISH)


def test_the_chinese_readme_is_chinese() -> None:
    words = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|<[^>]*>", "", without_blocks(CHINESE))
    chinese = len(re.findall(r"[\u4e00-\u9fff]", words))
    assert chinese > 1000
