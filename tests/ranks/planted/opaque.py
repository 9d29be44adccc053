"""Faults in kernels that no dispatcher sees, per layout: rank, micro-batch, phase, module and region, by hand.

The ranks of each layout are those of `origins.py`. The region is what PyTorch calls the Function: its forward by its
class, its backward by its node. A gradient goes by the argument of the forward that it belongs to; one that was added
to `main_grad` inside of the region, by its parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.ranks.layouts import LAYOUTS, Layout

FUSED = {"OPAQUE_MLP": "fused", "OPAQUE_WGRAD": "fused"}
ROPE = ("--position-embedding-type", "rope")
EVERY_EXPERT = ("--moe-router-topk", "8")
OUTPUT = "0"
Regions = Mapping[str, tuple[str, str, str]]


@dataclass(frozen=True)
class Cell:
    """A fault and its one origin.

    Attributes:
        region: as `tests/opaque/faults.py` names it.
        part: same.
        module: inside of the layer.
        operator: the region's name in the report.
        output: what of it is bad.
        phase: of the origin.
        call: which one of the layer.
    """

    rank: int
    microbatch: int
    layer: int
    region: str
    part: str
    module: str
    operator: str
    output: str
    phase: str
    call: int = 0

    def fault(self, step: int) -> str:
        """For OPAQUE_FAULT."""
        place = f"step={step},rank={self.rank},layer={self.layer},microbatch={self.microbatch}"
        return f"{place},region={self.region},part={self.part},call={self.call}"


@dataclass(frozen=True)
class Run:
    """One launch, a cell per step from the second on."""

    layout: Layout
    cells: tuple[Cell, ...]
    env: Mapping[str, str] = field(default_factory=dict)


MODULES = {
    "linear_qkv": ("self_attention.linear_qkv", "_LayerNormLinear", "inp"),
    "core_attention": ("self_attention.core_attention", "FusedAttnFunc", "k"),
    "linear_proj": ("self_attention.linear_proj", "_Linear", "inp"),
    "linear_fc1": ("mlp.linear_fc1", "_LayerNormLinear", "inp"),
    "linear_fc2": ("mlp.linear_fc2", "_Linear", "inp"),
    "mlp": ("mlp", "_LayerNormMLP", "inp"),
    "rope": ("self_attention", "FusedRoPEFunc", "t"),
    "pre_mlp_layernorm": ("pre_mlp_layernorm", "_LayerNorm", "inp"),
    "permute": ("mlp", "_moe_permute_mask_map", "inp"),
    "sort_chunks": ("mlp", "_moe_chunk_sort", "inp"),
    "unpermute": ("mlp", "_moe_unpermute_mask_map", "inp"),
}
"""Region to module, Function, and the argument whose gradient its backward spoils."""
EXPERTS = {
    "linear_fc1": ("mlp.experts.linear_fc1", "_GroupedLinear", "inp"),
    "linear_fc2": ("mlp.experts.linear_fc2", "_GroupedLinear", "inp"),
}
CONTEXT = {"core_attention": ("self_attention.core_attention", "AttnFuncWithCPAndKVAllGather", "k")}


def fwd(rank: int, microbatch: int, layer: int, region: str, *, call: int = 0, of: Regions = MODULES) -> Cell:
    module, function, _ = of[region]
    return Cell(rank, microbatch, layer, region, "fwd", module, f"{function}.forward", OUTPUT, "forward", call)


def recompute(rank: int, microbatch: int, layer: int, region: str) -> Cell:
    """Only the second forward is bad."""
    module, function, _ = MODULES[region]
    return Cell(rank, microbatch, layer, region, "recompute", module, f"{function}.forward", OUTPUT, "recompute")


def bwd(rank: int, microbatch: int, layer: int, region: str, *, call: int = 0, of: Regions = MODULES) -> Cell:
    module, function, argument = of[region]
    operator, output = f"{function}Backward", f"grad of {argument}"
    return Cell(rank, microbatch, layer, region, "bwd", module, operator, output, "backward", call)


def dgrad(rank: int, microbatch: int, layer: int, region: str) -> Cell:
    """The product inside of a backward, which is reduced there: the norm's gradients are made of it."""
    module, function, _ = MODULES[region]
    return Cell(rank, microbatch, layer, region, "dgrad", module, f"{function}Backward", "", "backward")


def wgrad(
    rank: int, microbatch: int, layer: int, region: str, output: str = "grad of weight", *, of: Regions = MODULES
) -> Cell:
    module, function, _ = of[region]
    return Cell(rank, microbatch, layer, region, "wgrad", module, f"{function}Backward", output, "backward")


def fused(rank: int, microbatch: int, layer: int, region: str, parameter: str, *, of: Regions = MODULES) -> Cell:
    """Straight into `main_grad`; the parameter by its name in the layer."""
    return wgrad(rank, microbatch, layer, region, f"wgrad of decoder.layers.{layer}.{parameter}", of=of)


RUNS: Mapping[str, Run] = {
    "D2": Run(
        LAYOUTS["D2"],
        (bwd(1, 2, 1, "core_attention"), fwd(1, 3, 2, "mlp"), fused(0, 1, 1, "mlp", "mlp.linear_fc1.weight")),
        FUSED,
    ),
    "D2 in parts": Run(
        LAYOUTS["D2"].plus(*ROPE),
        (
            fwd(1, 2, 1, "linear_fc1"),
            bwd(1, 0, 1, "linear_fc1"),
            wgrad(0, 3, 2, "linear_fc1"),
            fwd(0, 1, 3, "linear_proj"),
            fwd(1, 2, 1, "rope", call=1),
            bwd(1, 1, 2, "rope"),
        ),
    ),
    "D2 delayed": Run(
        LAYOUTS["D2"],
        (bwd(1, 2, 1, "linear_fc1"), fwd(1, 3, 2, "linear_proj"), wgrad(0, 0, 1, "linear_fc2")),
        {"OPAQUE_FP8": "delayed"},
    ),
    # Rank 1 is TP 1 of stage 0, rank 5 of stage 1, rank 6 TP 0 of replica 1. Row-parallel outputs are summed inside.
    "A": Run(
        LAYOUTS["A"],
        (
            fwd(1, 1, 1, "linear_fc2"),
            fwd(5, 0, 2, "core_attention"),
            bwd(5, 2, 3, "linear_fc1"),
            dgrad(1, 2, 0, "linear_qkv"),
            wgrad(6, 3, 2, "linear_qkv"),
        ),
    ),
    "A fused": Run(
        LAYOUTS["A"],
        (
            fwd(1, 1, 1, "mlp"),
            bwd(5, 2, 3, "mlp"),
            fused(6, 3, 2, "mlp", "mlp.linear_fc1.weight"),
            fused(6, 0, 2, "linear_proj", "self_attention.linear_proj.weight"),
        ),
        FUSED,
    ),
    # The first forward runs without a context: `F.forward(None, ...)`.
    "AR": Run(
        LAYOUTS["AR"],
        (
            fwd(7, 1, 2, "linear_fc1"),
            recompute(5, 2, 3, "linear_fc1"),
            recompute(1, 0, 1, "core_attention"),
            bwd(5, 2, 3, "linear_proj"),
            wgrad(6, 3, 2, "linear_fc2"),
        ),
    ),
    # Row 1 of rank 3's output is the other one's after the reduce-scatter; the gathers are inside as well.
    "B": Run(
        LAYOUTS["B"],
        (
            fwd(3, 0, 1, "linear_proj"),
            fwd(3, 1, 1, "linear_fc1"),
            dgrad(3, 1, 2, "linear_fc1"),
            bwd(3, 2, 1, "core_attention"),
            wgrad(3, 3, 1, "linear_fc1"),
        ),
    ),
    "B fused": Run(
        LAYOUTS["B"],
        (
            fwd(3, 0, 1, "mlp"),
            bwd(3, 1, 2, "mlp"),
            fused(3, 3, 1, "mlp", "mlp.linear_fc1.weight"),
            fused(2, 3, 0, "linear_qkv", "self_attention.linear_qkv.weight"),
        ),
        FUSED,
    ),
    "C": Run(
        LAYOUTS["C"].plus(*EVERY_EXPERT),
        (
            fwd(2, 1, 1, "linear_fc1", of=EXPERTS),
            bwd(2, 1, 1, "linear_fc2", of=EXPERTS),
            wgrad(3, 3, 2, "linear_fc1", "grad of 3", of=EXPERTS),
            bwd(1, 2, 1, "pre_mlp_layernorm"),
        ),
    ),
    "C permuted": Run(
        LAYOUTS["C"].plus(*EVERY_EXPERT),
        (
            fwd(2, 1, 1, "permute"),
            bwd(2, 0, 2, "permute"),
            fwd(1, 3, 1, "sort_chunks", call=1),
            bwd(1, 2, 1, "sort_chunks"),
            fwd(0, 1, 2, "unpermute"),
            # The first of the four experts of this rank is the fifth of all.
            fused(3, 3, 2, "linear_fc1", "mlp.experts.linear_fc1.weight4", of=EXPERTS),
        ),
        FUSED,
    ),
    # Stage s holds layer s in its first chunk and s + 4 in its second; ranks 2 s and 2 s + 1.
    "E": Run(
        LAYOUTS["E"].plus(*ROPE),
        (
            fwd(3, 3, 5, "linear_fc1"),
            bwd(3, 1, 1, "linear_fc2"),
            bwd(7, 2, 7, "rope", call=1),
            wgrad(0, 3, 4, "linear_qkv"),
        ),
    ),
    "E fused": Run(
        LAYOUTS["E"],
        (
            fwd(3, 3, 5, "mlp"),
            bwd(3, 1, 1, "mlp"),
            fused(0, 3, 4, "mlp", "mlp.linear_fc1.weight"),
        ),
        FUSED,
    ),
    # Keys and values are gathered over context parallelism inside of the attention. Their gradients are summed there:
    # what the kernel wrote is not what is returned.
    "H": Run(
        LAYOUTS["H"].plus(*ROPE),
        (
            fwd(3, 1, 1, "core_attention", of=CONTEXT),
            replace(bwd(3, 2, 1, "core_attention", of=CONTEXT), output=OUTPUT),
            fwd(2, 0, 2, "rope"),
            wgrad(6, 3, 3, "linear_proj"),
        ),
    ),
    "H fused": Run(
        LAYOUTS["H"],
        (fwd(3, 1, 1, "mlp"), bwd(3, 2, 1, "mlp"), fused(6, 3, 3, "mlp", "mlp.linear_fc1.weight")),
        FUSED,
    ),
}
