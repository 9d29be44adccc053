"""The source line that called an operator, and how its path is shortened."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_nanguard.tracing.places.source_lines import SourceLine, SourceLines


def test_words_for_a_line() -> None:
    def here() -> SourceLine | None:
        return SourceLines().here()

    line = here()
    assert line is not None
    assert str(line).endswith(f"test_source_lines.py:{line.number} in here")


@pytest.mark.parametrize(
    ("path", "entries", "expected"),
    [
        ("/site/megatron/core/layer.py", ["/", "/site", "/other"], "megatron/core/layer.py"),
        ("/site/megatron/core/layer.py", ["/site/megatron", "/site"], "core/layer.py"),
        ("/site-two/layer.py", ["/site"], "/site-two/layer.py"),
        ("<string>", ["/site"], "<string>"),
    ],
)
def test_a_path_is_cut_to_the_part_below_the_longest_entry_that_holds_it(
    monkeypatch: pytest.MonkeyPatch, path: str, entries: list[str], expected: str
) -> None:
    monkeypatch.setattr("sys.path", entries)
    assert str(SourceLine(compile("", path, "exec"), 7)) == f"{expected}:7 in <module>"


def test_a_path_of_an_editable_install_begins_with_its_outermost_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "source" / "model" / "layers"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    monkeypatch.setattr("sys.path", ["/site"])
    assert str(SourceLine(compile("", str(inner / "mlp.py"), "exec"), 7)) == "model/layers/mlp.py:7 in <module>"
    alone = str(tmp_path / "source" / "train.py")
    assert str(SourceLine(compile("", alone, "exec"), 7)) == f"{alone}:7 in <module>"


def test_method_is_named_with_its_class_from_python_3_11_on() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> SourceLine | None:
            return SourceLines().here()

    line = Layer()(torch.ones(1))
    assert line.function in ("Layer.forward", "forward")
