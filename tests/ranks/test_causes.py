"""Faults where they come into a run, end to end: the verdict, and where it began, stated by hand.

Several faults share a run, one step each. The verdict "undecided" stands where nobody could know more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.cpurun.job import Finished
from megatron_nanguard.cpurun.server import Server
from tests.ranks.layouts import DISTRIBUTED_OPTIMIZER, FP16, LAYOUTS, MOE, Layout
from tests.ranks.run_files import RunFiles

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("seams.py")
GUARD = "megatron_nanguard:enable"
ONE, TWO = LAYOUTS["D1"], LAYOUTS["D2"]
PIPELINE = TWO.plus("--pipeline-model-parallel-size", "2", "--global-batch-size", "8")
TENSOR = TWO.plus("--tensor-model-parallel-size", "2", "--global-batch-size", "8", "--bf16")
EXPERTS = TWO.plus(*MOE, "--expert-model-parallel-size", "2")
ATTENTION = "decoder.layers.1.self_attention.core_attention"
EMBEDDING = "embedding.word_embeddings"
GONE = {"plain": "no", "synchronous": "no", "marker": "no"}
BACK = {"plain": "yes", "traced": "yes"}
FILLED = {"plain": "no", "synchronous": "no", "marker": "yes", "traced": "yes"}


@dataclass(frozen=True)
class Verdict:
    """What is said of a fault.

    Attributes:
        seam: its name in `seams.py`.
        causes: the most likely ones; further ones may follow.
        origin: rank, micro-batch, phase, module, operator; none where nothing came back.
        passes: whether the fault came back, in their order.
        previous_batch: what became of the batch of the step before.
        layout: of the bad positions.
        says: a part of the first argument for the cause.
    """

    seam: str
    causes: tuple[str, ...]
    origin: tuple[int, int, str, str, str] | None = None
    passes: Mapping[str, str] = field(default_factory=lambda: BACK)
    previous_batch: str = "not_tried"
    layout: str = ""
    says: str = ""


MEMORY = "uninitialised_or_race"

# One rank -----------------------------------------------------------------------------------------------------------

ON_ONE_RANK = (
    Verdict("mutated", (MEMORY,), passes=GONE, says="the batch of rank 0 changed after it had been fetched"),
    Verdict(
        "half_written",
        (MEMORY,),
        (0, 1, "forward", "decoder.layers.1.mlp", "half_written"),
        FILLED,
        layout="rows 20 to 31, to the end",
        says="memory was read that nobody had written",
    ),
    Verdict(
        "all_masked",
        ("loss_or_mask", "numerics"),
        (0, 1, "forward", "", "div.Tensor"),
        previous_batch="finite",
        says="no valid token in micro-batch 1 of rank 0",
    ),
    Verdict(
        "clipped_ratio",
        ("loss_or_mask",),
        (0, 1, "forward", "", "exp"),
        previous_batch="bad",
        says="its branch is not picked",
    ),
    # [batch, seq, head, dim]: the gradient of the keys, 8 calls of 8, and the reference is finite.
    Verdict(
        "fused_attention",
        ("operator",),
        (0, 0, "backward", ATTENTION, "FlashAttnFuncBackward"),
        previous_batch="bad",
        layout="5 to 7 of dim 1, head 2 (dim 2)",
    ),
    Verdict(
        "stale_bucket",
        (MEMORY,),
        (0, 0, "load", "decoder.final_layernorm", "gradient of decoder.final_layernorm.bias"),
        previous_batch="bad",
        layout="run of 8 from element 0",
        says="the gradient buffer was bad before anything was added",
    ),
    Verdict(
        "nan_sample",
        ("data",),
        (0, 1, "load", "", "tensor (2, 32) float32"),
        layout="column 5",
        says="micro-batch 1, loss_mask on rank 0 holds nan as it was fetched",
    ),
)

# Two replicas -------------------------------------------------------------------------------------------------------

# The step that has the bad moment is applied; its weights are bad in the next.
ON_TWO_REPLICAS = (
    # In float32 and on rank 0 the same call is finite; 64 elements from the end.
    Verdict(
        "kernel",
        ("hardware_persistent",),
        (1, 0, "forward", "decoder.layers.0.mlp", "gelu"),
        previous_batch="bad",
        layout="row 31, 1 of dim 1, 192 to 255 of dim 2",
        says="is bad 8 times of 8 here, and finite on the device of rank 0",
    ),
    Verdict("kernel_once", ("undecided", "hardware_transient"), passes=GONE),
    Verdict(
        "early_bucket",
        (MEMORY,),
        passes={"plain": "yes", "traced": "no", "synchronous": "no", "marker": "no"},
        says="vanishes under synchronisation",
    ),
)


def train(ranks: Server, layout: Layout, folder: Path, seams: Mapping[int, str], *more: str) -> Finished:
    """A run in which incidents are skipped; one step more than the last that has a fault."""
    guarded = layout.plus(
        *("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", "skip"),
        *("--nanguard-max-skips", "99/99", "--train-iters", str(max(seams) + 1), *more),
    )
    variables = {"SEAMS": ";".join(f"{step}={name}" for step, name in seams.items())}
    return ranks.run(layout.nproc, SCRIPT, guarded.args, env=variables, in_rank=GUARD, cwd=folder)


def check(run: RunFiles, step: int, verdict: Verdict) -> dict[str, Any]:
    """The merged incident of a step, after what is said of every fault."""
    merged = run.merged(step)
    causes = tuple(cause["cause"] for cause in merged["causes"])
    assert causes[: len(verdict.causes)] == verdict.causes, (verdict.seam, merged["causes"])
    assert verdict.says in merged["causes"][0]["for"][0]
    assert {one["label"]: one["came_back"] for one in merged["replay"]["passes"]} == verdict.passes
    assert merged["replay"]["previous_batch"] == verdict.previous_batch, verdict.seam
    if verdict.origin is None:
        assert merged["origin"] == []
    else:
        first = merged["origin"][0]
        assert tuple(first[key] for key in ("rank", "microbatch", "phase", "module", "operator")) == verdict.origin
        assert first["facts"] is None or first["facts"]["layout"] == verdict.layout
    return merged


def check_all(ranks: Server, layout: Layout, folder: Path, verdicts: Sequence[Verdict]) -> RunFiles:
    """One fault per step from the second on."""
    steps = dict(enumerate(verdicts, start=2))
    finished = train(ranks, layout, folder, {step: verdict.seam for step, verdict in steps.items()})
    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(folder)
    assert run.incidents == [f"step_{step:08d}" for step in steps]
    for step, verdict in steps.items():
        check(run, step, verdict)
    return run


# By default ---------------------------------------------------------------------------------------------------------


def test_on_one_rank(ranks: Server, tmp_path: Path) -> None:
    run = check_all(ranks, ONE, tmp_path, ON_ONE_RANK)
    by_seam = {verdict.seam: step for step, verdict in enumerate(ON_ONE_RANK, start=2)}
    fused = run.merged(by_seam["fused_attention"])
    assert fused["origin"][0]["output"] == "grad of k"
    (call,) = fused["arbitrations"]
    assert (call["operator"], call["repeats_bad"], call["reference_fp64"]) == ("FlashAttnFunc.backward", 8, "finite")


def test_a_metric_that_nothing_depends_on_is_no_incident(ranks: Server, tmp_path: Path) -> None:
    finished = train(ranks, ONE, tmp_path, {2: "nan_metric"})

    assert finished.code == 0, finished.out
    assert "accuracy:" in finished.out, "the metric was reported"
    assert RunFiles.only_one_of(tmp_path).incidents == []


def test_devices_and_timing_on_two_replicas(ranks: Server, tmp_path: Path) -> None:
    run = check_all(ranks, TWO, tmp_path, ON_TWO_REPLICAS)
    causes = {cause["cause"]: cause for cause in run.merged(3)["causes"]}
    assert "hardware_persistent" not in causes, "a fault that never came back convicts no device"
    assert causes["hardware_transient"]["confidence"] <= 0.4


# The full grid ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_kernel_that_is_sometimes_wrong_is_no_persistent_hardware(ranks: Server, tmp_path: Path) -> None:
    finished = train(ranks, TWO, tmp_path, {2: "kernel_sometimes"})

    assert finished.code == 0, finished.out
    merged = RunFiles.only_one_of(tmp_path).merged(2)
    assert merged["causes"][0]["cause"] in ("undecided", "operator", "hardware_transient")
    assert merged["replay"]["exact"] is False
    assert (merged["origin"][0]["rank"], merged["origin"][0]["operator"]) == (1, "gelu")


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "verdict"),
    [
        pytest.param(
            PIPELINE,
            Verdict(
                "receive_buffer",
                ("communication",),
                (1, 1, "forward", "decoder.layers.2.input_layernorm", "recv_"),
                previous_batch="bad",
                says="finite at every sender, nan on arrival",
            ),
            id="receive",
        ),
        pytest.param(
            TENSOR,
            Verdict(
                "all_reduce",
                ("communication",),
                (1, 1, "forward", "embedding", "allreduce_"),
                previous_batch="bad",
                says="finite at every sender, nan on arrival",
            ),
            id="all-reduce",
        ),
        pytest.param(
            EXPERTS,
            Verdict(
                "all_to_all",
                ("communication",),
                (1, 1, "forward", "decoder.layers.0.mlp", "alltoall_base_"),
                previous_batch="bad",
                says="finite at every sender, nan on arrival",
            ),
            id="all-to-all",
        ),
        pytest.param(
            ONE.plus(*MOE),
            Verdict(
                "idle_expert",
                (MEMORY,),
                (
                    *(0, 1, "backward", "decoder.layers.1.mlp.experts.local_experts.5.linear_fc1"),
                    "GroupedLinearBackward",
                ),
                FILLED,
                layout="every element",
            ),
            id="idle expert",
        ),
    ],
)
def test_one_fault_of_a_layout(ranks: Server, tmp_path: Path, layout: Layout, verdict: Verdict) -> None:
    run = check_all(ranks, layout, tmp_path, [verdict])
    if verdict.causes == ("communication",):
        assert run.merged(2)["origin"][0]["ranks"] == [1]


@pytest.mark.long
def test_an_overflow_of_the_loss_scale_is_told_from_a_fault(ranks: Server, tmp_path: Path) -> None:
    # The first step is applied, so that the search for a scale is over.
    layout = ONE.plus(*FP16, "--initial-loss-scale", "1024", "--nanguard-scaler-skips", "1")
    finished = train(ranks, layout, tmp_path, {2: "large_gradient", 3: "clipped_ratio"})

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path)
    verdicts = {
        step: (run.merged(step)["replay"]["lower_scale"], run.merged(step)["causes"][0]["cause"]) for step in (2, 3)
    }
    assert verdicts == {2: ("finite", "loss_scaling"), 3: ("bad", "loss_or_mask")}
    assert run.merged(2)["scaler"] == {"in_search": False, "just_raised": False, "skips_in_a_row": 0}


@pytest.mark.long
def test_a_bad_load_is_found_in_the_shard_that_has_it(ranks: Server, tmp_path: Path) -> None:
    finished = train(ranks, TENSOR, tmp_path, {1: "bad_load"}, "--train-iters", "1")

    assert finished.code == 0, finished.out
    weight = "decoder.layers.2.mlp.linear_fc2"
    merged = check(
        RunFiles.only_one_of(tmp_path),
        1,
        Verdict("bad_load", ("state_corruption",), (1, 0, "load", weight, f"parameter {weight}.weight")),
    )
    assert [(one["kind"], one["name"], one["rank"]) for one in merged["audit"]] == [
        ("weight", f"{weight}.weight", 1),
        ("main_param", f"{weight}.weight", 1),
    ]


@pytest.mark.long
def test_a_negative_second_moment_is_told_with_the_weight_it_spoiled(ranks: Server, tmp_path: Path) -> None:
    finished = train(ranks, TWO, tmp_path, {2: "bad_moment"})

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000003"], "the step with the bad moment was finite, and was applied"
    origin = (1, 0, "load", EMBEDDING, f"parameter {EMBEDDING}.weight")
    merged = check(run, 3, Verdict("bad_moment", ("state_corruption",), origin))
    assert [(one["kind"], one["pattern"], one["rank"]) for one in merged["audit"]] == [
        ("weight", "nan", 1),
        ("exp_avg_sq", "negative", 1),
    ]
    assert merged["advice"] == ["bad_moments", "bad_weights"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "seam"),
    [
        pytest.param(TENSOR, "bad_copy", id="its owner's copy"),
        pytest.param(TWO.plus("--bf16", *DISTRIBUTED_OPTIMIZER), "bad_gather", id="what others own"),
    ],
)
def test_a_bad_copy_of_a_good_main_parameter_is_not_skipped_over_and_over(
    ranks: Server, tmp_path: Path, layout: Layout, seam: str
) -> None:
    finished = train(ranks, layout, tmp_path, {2: seam})

    assert finished.code == 65, finished.out
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000002"]
    merged = run.merged(2)
    assert merged["causes"][0]["cause"] == "state_corruption"
    assert (merged["policy"]["name"], merged["policy"]["action"]) == ("skip", "abort")
    assert merged["policy"]["words"].startswith("A model weight is bad though its main parameter is good")
