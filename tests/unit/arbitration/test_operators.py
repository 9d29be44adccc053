"""What a bundle may call."""

from __future__ import annotations

import pytest
import torch

from megatron_nanguard.arbitration.operators import ALLOWED, allowed_operator
from megatron_nanguard.errors import PostmortemError


@pytest.mark.parametrize("name", ["aten.log.default", "aten.log_.default", "aten.mm.default", "aten._softmax.default"])
def test_arithmetic_is_on_the_list_in_place_too(name: str) -> None:
    assert str(allowed_operator(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.set_.source_Storage",
        "aten.resize_.default",
        "aten.as_strided.default",
        "aten.__class__.default",
        "aten.log.__init__",
        "prim.Print.default",
        "c10d.allreduce_.default",
        "builtins.eval.default",
        "torch.load",
        "aten.log.default.__globals__",
        "aten.log",
        "",
        "os.system('true')",
    ],
)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(PostmortemError):
        allowed_operator(name)


def test_an_overload_that_torch_does_not_have_is_named() -> None:
    with pytest.raises(PostmortemError, match=r"^this torch has no operator aten\.log\.Unheard$"):
        allowed_operator("aten.log.Unheard")


def test_every_name_on_the_list_is_an_operator_of_torch() -> None:
    aten = torch.ops.aten
    assert [name for name in ALLOWED if not (hasattr(aten, name) or hasattr(aten, f"{name}_"))] == []
