from __future__ import annotations

from typing import Any


def test_compile_returns_the_function_in_both_forms(mapped: Any) -> None:
    def function() -> None: ...

    assert mapped.compile(function) is function
    assert mapped.compile(mode="max-autotune")(function) is function
