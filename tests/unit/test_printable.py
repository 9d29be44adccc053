r"""Nothing that a file holds steers the terminal."""

from __future__ import annotations

import orjson
import pytest

from megatron_nanguard.printable import printable, printable_json, printable_lines, spelled_for


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("decoder.layers.3.mlp", "decoder.layers.3.mlp"),
        ("层 3, café", "层 3, café"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("a\tb\rc\x7f", r"a\tb\rc\x7f"),
        ("a\nb", r"a\nb"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("a\u2028b", r"a\u2028b"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_would_steer_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_stay_lines() -> None:
    assert printable_lines("one\n\x1b[2Jtwo\n") == "one\n\\x1b[2Jtwo\n"


def test_json_keeps_its_meaning() -> None:
    tree = {"module": "a\x9b31m\u202eb\x7f\n"}

    shown = printable_json(orjson.dumps(tree, option=orjson.OPT_INDENT_2).decode())

    assert shown == '{\n  "module": "a\\u009b31m\\u202eb\\u007f\\n"\n}'
    assert orjson.loads(shown) == tree


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"\xe9 \u5c42"), ("latin-1", r"é \u5c42"), ("utf-8", "é 层"), (None, "é 层")]
)
def test_letters_that_an_encoding_lacks_are_spelled_out(encoding: str | None, shown: str) -> None:
    assert spelled_for("é 层", encoding) == shown
