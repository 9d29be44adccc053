"""The first bad values in a watched module, with copies of all tensors of that call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.json.record_file import atomic_write
from megatron_nanguard.records.trace import TensorFacts

WatchPhase = Literal["forward", "recompute", "backward"]


@dataclass(frozen=True, eq=False)
class BadValues:
    """One call of a module that returned or received bad values.

    Attributes:
        module: its name; empty for the model as a whole.
        phase: forward, recompute (the forward again in the backward, by activation checkpointing) or backward.
        step: as the training log counts it; null outside of a training step.
        call: number of such calls of the module before this one, in the step or since the watch began.
        bad_out: the bad outputs; in the backward the bad gradients of inputs.
        bad_in: the bad inputs; in the backward the bad gradients of outputs.
        above: magnitude above which finite values count as bad; null for no limit.
        changed: tensors that changed after the forward, and how.
        tensors: copies in host memory: `inputs`, `outputs`, `grad_output`, `grad_input` and the module's `state`.
    """

    module: str
    phase: WatchPhase
    step: int | None
    call: int
    bad_out: tuple[TensorFacts, ...]
    bad_in: tuple[TensorFacts, ...]
    above: float | None
    changed: dict[str, str]
    tensors: dict[str, dict[str, Tensor]]

    def __str__(self) -> str:
        into, out = ("grad_output", "grad_input") if self.phase == "backward" else ("input", "output")
        parts = [_words(out, facts) for facts in self.bad_out]
        parts += [_words(into, facts) + " on arrival" for facts in self.bad_in]
        if not self.bad_in:
            state = "finite" if self.above is None else "within the limit"
            parts.append(f"{into} was {state}" if self.phase == "backward" else f"{into}s were {state}")
        call = f", call {self.call}" if self.call else ""
        return f"{self.phase} of {self.module or 'the model'}{call}: {'; '.join(parts)}"

    def save(self, path: Path) -> None:
        """Write the file; `torch.load(path, weights_only=True)` reads it.

        Raises:
            OSError: the directory cannot be made or the file not written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            try:
                torch.save(self.content(), file)
            except RuntimeError as error:  # what torch makes of a full disk
                raise OSError(str(error).partition("\n")[0]) from error

    def content(self) -> dict[str, Any]:
        """Content of the file: plain values and tensors, which `torch.load` reads with `weights_only=True`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "module": self.module,
            "phase": self.phase,
            "step": self.step,
            "call": self.call,
            "above": self.above,
            "words": str(self),
            "changed": dict(self.changed),
            **self.tensors,
        }


def _words(kind: str, facts: TensorFacts) -> str:
    name = f"{kind} {facts.name}" if facts.name else kind
    return f"{name}: {', '.join(_counts(facts))}, first at {list(facts.positions[0])}"


def _counts(facts: TensorFacts) -> Iterator[str]:
    numel = math.prod(facts.shape)
    if facts.nan_count:
        yield f"{facts.nan_count} NaN of {numel}"
    if facts.inf_count:
        yield f"{facts.inf_count} Inf of {numel}"
    if facts.pattern == "finite":
        yield f"up to {facts.absmax:g}"
