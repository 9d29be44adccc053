"""Faults where they enter a run, end to end: cause and origin, worked out by hand.

Several faults share a run, one step each. "undecided" is expected where the evidence allows no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.import_server import Finished, Server
from tests.ranks.layouts import DISTRIBUTED_OPTIMIZER, FP16, LAYOUTS, MOE, OVERLAP, Layout
from tests.ranks.run_files import RunFiles

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("seams") / "run.py"
GUARD = "megatron_nanguard:enable"
ONE, TWO = LAYOUTS["D1"], LAYOUTS["D2"]
PIPELINE = TWO.plus("--pipeline-model-parallel-size", "2", "--global-batch-size", "8")
TENSOR = TWO.plus("--tensor-model-parallel-size", "2", "--global-batch-size", "8", "--bf16")
# Gradients are divided by the tokens of all ranks after they are summed, and by nothing before.
HALF = TWO.plus("--fp16", "--loss-scale", "1", "--calculate-per-token-loss")
HALF_TENSOR = HALF.plus("--tensor-model-parallel-size", "2", "--global-batch-size", "8")
SHARDED = TWO.plus("--bf16", *DISTRIBUTED_OPTIMIZER)
EXPERTS = TWO.plus(*MOE, "--expert-model-parallel-size", "2")
ATTENTION = "decoder.layers.1.self_attention.core_attention"
GONE = {"plain": "no", "synchronous": "no", "marker": "no"}
BACK = {"plain": "yes", "traced": "yes", "probed": "yes"}
SEEN_BETWEEN_RANKS = {"plain": "yes", "traced": "yes"}
FILLED = {"plain": "no", "synchronous": "no", "marker": "yes", "traced": "yes", "probed": "yes"}


@dataclass(frozen=True)
class Verdict:
    """What is said of a fault.

    Attributes:
        seam: its name in `seams/`.
        causes: the most likely ones; further ones may follow.
        origin: rank, micro-batch, phase, module, operator; none where nothing came back.
        passes: whether the fault came back, in their order.
        previous_batch: what became of the batch of the step before.
        layout: of the bad positions.
        says: a part of the first argument for the cause.
    """

    seam: str
    causes: tuple[str, ...]
    origin: tuple[int, int | None, str, str, str] | None = None
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
    # Alone it is finite each time.
    Verdict(
        "kernel_in_step",
        ("hardware_transient",),
        (1, 1, "forward", "decoder.layers.0.mlp", "gelu"),
        previous_batch="bad",
        layout="row 31, 1 of dim 1, 192 to 255 of dim 2",
        says="gelu.default on rank 1 is finite 8 times of 8 on the inputs it failed on",
    ),
    Verdict("kernel_once", ("undecided", "hardware_transient"), passes=GONE),
    # Traced twice alike, and gone the second time: where it began is known, the call that failed is not.
    Verdict(
        "kernel_thrice",
        (MEMORY,),
        (1, 1, "forward", "decoder.layers.0.mlp", "gelu"),
        passes={"plain": "yes", "traced": "yes", "probed": "no", "synchronous": "no", "marker": "no"},
    ),
    Verdict(
        "early_bucket",
        (MEMORY,),
        passes={"plain": "yes", "traced": "no", "synchronous": "no", "marker": "no"},
        says="vanishes under synchronisation",
    ),
)


# The wire -----------------------------------------------------------------------------------------------------------

ARRIVED_BAD = "finite at every sender, nan on arrival"
TOO_LARGE = "what every member sent was finite, the sum is Inf"

# The module is the one that reads the sum first.
ON_TENSOR_PARALLEL_RANKS = (
    Verdict(
        "all_reduce",
        ("communication",),
        (1, 1, "forward", "embedding.word_embeddings", "allreduce_"),
        passes=SEEN_BETWEEN_RANKS,
        previous_batch="bad",
        says=ARRIVED_BAD,
    ),
    Verdict(
        "sum_too_large",
        ("numerics",),
        (0, 1, "forward", "decoder.layers.1.mlp.linear_fc2", "allreduce_"),
        passes=SEEN_BETWEEN_RANKS,
        previous_batch="bad",
        says=TOO_LARGE,
    ),
    Verdict(
        "functional_sum",
        ("numerics",),
        (0, 1, "forward", "decoder.layers.1.mlp.linear_fc2", "all_reduce"),
        passes=SEEN_BETWEEN_RANKS,
        previous_batch="bad",
        says=TOO_LARGE,
    ),
)
# No micro-batch has it: what the reduction left is read first where Megatron divides by the number of tokens.
SUMS_OF_GRADIENTS = (
    Verdict(
        "gradient_sum",
        ("numerics",),
        (0, None, "finalize", "", "allreduce_coalesced_"),
        passes=SEEN_BETWEEN_RANKS,
        previous_batch="bad",
        says=TOO_LARGE,
    ),
)
ON_TWO_STAGES = (
    Verdict(
        "receive_buffer",
        ("communication",),
        (1, 1, "forward", "decoder.layers.2.input_layernorm", "recv_"),
        passes=SEEN_BETWEEN_RANKS,
        previous_batch="bad",
        says=ARRIVED_BAD,
    ),
)
BETWEEN_EXPERTS = (
    Verdict(
        "all_to_all",
        ("communication",),
        (1, 1, "forward", "decoder.layers.0.mlp", "alltoall_base_"),
        passes=SEEN_BETWEEN_RANKS,
        previous_batch="bad",
        says=ARRIVED_BAD,
    ),
)
AN_IDLE_EXPERT = (
    Verdict(
        "idle_expert",
        (MEMORY,),
        (0, 1, "backward", "decoder.layers.1.mlp.experts.local_experts.5.linear_fc1", "GroupedLinearBackward"),
        FILLED,
        layout="every element",
    ),
)

BY_DEFAULT: Mapping[str, tuple[Layout, tuple[Verdict, ...]]] = {
    "one rank": (ONE, ON_ONE_RANK),
    "two replicas": (TWO, ON_TWO_REPLICAS),
    "tensor parallel": (HALF_TENSOR, ON_TENSOR_PARALLEL_RANKS),
    "sums of gradients": (HALF, SUMS_OF_GRADIENTS),
    "two stages": (PIPELINE, ON_TWO_STAGES),
}
FULL_GRID: Mapping[str, tuple[Layout, tuple[Verdict, ...]]] = {
    "experts": (EXPERTS, BETWEEN_EXPERTS),
    "idle expert": (ONE.plus(*MOE), AN_IDLE_EXPERT),
}
ALL = {**BY_DEFAULT, **FULL_GRID}
EVERY = [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long) for name in ALL]


def train(ranks: Server, layout: Layout, folder: Path, seams: Mapping[int, str], *more: str, **env: str) -> Finished:
    """A run in which incidents are skipped; one step more than the last that has a fault."""
    guarded = layout.plus(
        *("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", "skip"),
        *("--nanguard-max-skips", "99/99", "--train-iters", str(max(seams) + 1), *more),
    )
    variables = {"SEAMS": ";".join(f"{step}={name}" for step, name in seams.items()), **env}
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


def check_all(ranks: Server, folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """One fault per step from the second on; the merged incidents by the name of the fault."""
    layout, verdicts = ALL[name]
    steps = dict(enumerate(verdicts, start=2))
    finished = train(ranks, layout, folder, {step: verdict.seam for step, verdict in steps.items()})
    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(folder)
    assert run.incidents == [f"step_{step:08d}" for step in steps]
    return {verdict.seam: check(run, step, verdict) for step, verdict in steps.items()}


def check_twin(ranks: Server, layout: Layout, folder: Path, seams: Mapping[int, str], *more: str) -> None:
    """The same faults with harmless values: they act, and nothing is said."""
    folder.mkdir(exist_ok=True)
    finished = train(ranks, layout, folder, seams, *more, TWIN="1")
    assert finished.code == 0, finished.out
    assert f"rank {layout.nproc - 1} acted: {', '.join(sorted(seams.values()))}\n" in finished.out
    assert finished.out.count("number of skipped iterations:   0") == max(seams) + 1
    assert RunFiles.only_one_of(folder).incidents == []


# In the order of what they take -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_fault_at_its_seam_is_given_its_cause(ranks: Server, tmp_path: Path, name: str) -> None:
    found = check_all(ranks, tmp_path, name)

    if name == "one rank":
        fused = found["fused_attention"]
        assert fused["origin"][0]["output"] == "grad of k"
        (call,) = fused["arbitrations"]
        assert (call["operator"], call["repeats_bad"], call["reference_fp64"]) == (
            "FlashAttnFuncBackward",
            8,
            "finite",
        )
    if name == "two replicas":
        causes = {cause["cause"]: cause for cause in found["kernel_once"]["causes"]}
        of_hardware = [causes[name]["confidence"] for name in causes if name.startswith("hardware")]
        assert max(of_hardware) <= 0.4, "a fault that never came back convicts no device"
    for incident in found.values():
        if incident["causes"][0]["cause"] == "communication":
            assert incident["origin"][0]["ranks"] == [1]
    for seam in found.keys() & {"sum_too_large", "functional_sum", "gradient_sum"}:
        assert found[seam]["origin"][0]["ranks"] == [0, 1]


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seam_without_a_bad_value_is_silent(ranks: Server, tmp_path: Path, name: str) -> None:
    layout, verdicts = ALL[name]
    check_twin(ranks, layout, tmp_path, dict(enumerate((verdict.seam for verdict in verdicts), start=2)))


def test_a_metric_that_nothing_depends_on_is_no_incident(ranks: Server, tmp_path: Path) -> None:
    finished = train(ranks, ONE, tmp_path, {2: "nan_metric"})

    assert finished.code == 0, finished.out
    assert "accuracy:" in finished.out, "the metric was reported"
    assert RunFiles.only_one_of(tmp_path).incidents == []


def test_a_gathered_weight_that_went_bad_is_not_healed_by_the_replay(ranks: Server, tmp_path: Path) -> None:
    # Its gathering overlaps with the first forward: the replay finds the weight as the step had it.
    layout, seam = SHARDED.plus(*OVERLAP), {3: "late_gather"}
    finished = train(ranks, layout, tmp_path, seam)

    assert finished.code == 65, finished.out
    norm = "decoder.final_layernorm"
    origin = (1, 0, "load", norm, f"parameter {norm}.bias")
    merged = check(RunFiles.only_one_of(tmp_path), 3, Verdict("late_gather", ("state_corruption",), origin))
    assert merged["replay"]["exact"] is True
    assert [(one["kind"], one["name"], one["rank"], one["note"]) for one in merged["audit"]] == [
        ("weight", f"{norm}.bias", 1, "where it is bad, other ranks own it")
    ]
    check_twin(ranks, layout, tmp_path / "twin", seam)


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
def test_an_overflow_of_the_loss_scale_is_told_from_a_fault(ranks: Server, tmp_path: Path) -> None:
    # The first step is applied, so that the search for a scale is over.
    layout = ONE.plus(*FP16, "--initial-loss-scale", "1024", "--nanguard-scaler-skips", "1")
    finished = train(ranks, layout, tmp_path, {2: "large_gradient", 3: "clipped_ratio"})

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path)
    verdicts = {
        step: (run.merged(step)["replay"]["lower_scale"], run.merged(step)["causes"][0]["cause"]) for step in (2, 3)
    }
    assert verdicts == {2: ("finite", "loss_scaler"), 3: ("bad", "loss_or_mask")}
    assert run.merged(2)["scaler"] == {"in_search": False, "just_raised": False, "skips_in_a_row": 0}


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "seam"),
    [
        pytest.param(TENSOR, "bad_copy", id="its owner's copy"),
        pytest.param(SHARDED, "bad_gather", id="what others own"),
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
    check_twin(ranks, layout, tmp_path / "twin", {2: seam})
