from __future__ import annotations

from megatron_nanguard.report.blocks import Block, Point, Tone, each_text


def test_each_text_changes_every_text_and_nothing_else() -> None:
    block = Block("a", rows=(("b", "c"),), points=(Point("d", below=(Point("e"),)),), tone=Tone.BAD)

    assert each_text(block, str.upper) == Block(
        "A", rows=(("B", "C"),), points=(Point("D", below=(Point("E"),)),), tone=Tone.BAD
    )
    assert each_text({"k": ["x", 1, None]}, str.upper) == {"k": ["X", 1, None]}
