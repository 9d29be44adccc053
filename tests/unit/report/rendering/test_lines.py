"""How text is folded into lines."""

from __future__ import annotations

import pytest

from megatron_nanguard.report.blocks import Tone
from megatron_nanguard.report.rendering.lines import Span, fold, paragraph


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two", ["one two"]),
        ("one two three", ["one two", "three"]),
        ("a decoder.layers.3.mlp b", ["a", "decoder.layers.3.mlp", "b"]),
        ("  one  two", ["one  two"]),
        # Two columns each: four fit into eight.
        ("\u68af\u5ea6\u6570\u503c\u5f02\u5e38", ["\u68af\u5ea6\u6570\u503c", "\u5f02\u5e38"]),
        ("rank 5 \u68af\u5ea6", ["rank 5", "\u68af\u5ea6"]),
    ],
)
def test_text_breaks_between_words_and_between_ideographs(text: str, lines: list[str]) -> None:
    assert fold(text, 8) == lines


def test_further_lines_are_indented_to_the_first_word() -> None:
    lines = list(paragraph("one two three", 10, (Span("> "),), Tone.BAD))

    assert lines == [(Span("> "), Span("one two", Tone.BAD)), (Span("  "), Span("three", Tone.BAD))]
