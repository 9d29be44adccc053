"""The stack of modules entered."""

from __future__ import annotations

import pytest
from torch import Tensor, nn, ones

from megatron_nanguard.tracing.places.module_stack import ModuleStack


class Speaker(nn.Module):
    """Notes which module is current when it runs."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.heard = heard
        self.stack: ModuleStack | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.stack is not None
        self.heard.append(self.stack.current)
        return x


class Failing(nn.Module):
    """Is left by an exception."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("planted")


def speaker_and_stack(*wrappers: str) -> tuple[Speaker, ModuleStack]:
    speaker = Speaker([])
    speaker.stack = ModuleStack({speaker: "layers.0.speaker"} if "named" in wrappers else {}, lambda: None)
    return speaker, speaker.stack


def test_innermost_module_is_current_by_its_global_path() -> None:
    speaker, stack = speaker_and_stack("named")
    stack.attach()
    nn.Sequential(speaker)(ones(1))
    assert (speaker.heard, stack.current) == (["layers.0.speaker"], "")
    stack.detach()


def test_module_without_a_path_goes_by_its_class() -> None:
    speaker, stack = speaker_and_stack()
    stack.attach()
    speaker(ones(1))
    stack.detach()
    assert speaker.heard == ["Speaker"]


def test_module_left_by_an_exception_is_left() -> None:
    _, stack = speaker_and_stack()
    stack.attach()
    with pytest.raises(ValueError, match="planted"):
        nn.Sequential(Failing())(ones(1))
    assert stack.current == ""
    stack.detach()


def test_hooks_of_a_module_run_inside_of_it() -> None:
    speaker, stack = speaker_and_stack("named")
    speaker.register_forward_pre_hook(lambda module, args: speaker.heard.append(f"before: {stack.current}"))
    speaker.register_forward_hook(lambda module, args, output: speaker.heard.append(f"after: {stack.current}"))
    outer = nn.Sequential(speaker)
    stack.attach()
    outer(ones(1))
    outer(ones(1))
    assert stack.current == ""
    stack.detach()
    assert speaker.heard == ["before: layers.0.speaker", "layers.0.speaker", "after: layers.0.speaker"] * 2
    assert len(speaker._forward_hooks) == 1


def test_module_left_by_an_exception_of_its_own_hook_is_left() -> None:
    _, stack = speaker_and_stack()
    failing = Failing()
    failing.register_forward_hook(lambda module, args, output: None)
    stack.attach()
    with pytest.raises(ValueError, match="planted"):
        nn.Sequential(failing)(ones(1))
    assert stack.current == ""
    stack.detach()


def test_detached_stack_follows_nothing() -> None:
    speaker, stack = speaker_and_stack("named")
    stack.attach()
    stack.detach()
    speaker(ones(1))
    assert speaker.heard == [""]
