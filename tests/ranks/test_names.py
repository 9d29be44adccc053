"""Names, places and pieces of real Megatron models against lists written by hand.

`dump_names.py` gives every gradient element of rank r the value r + 1 and reduces once. Dividing by the number of
data-parallel ranks comes before the sum, so what is left of rank r's own values is (r + 1) / DP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("dump_names.py")

DENSE_LAYER = {
    "input_layernorm.weight",
    "input_layernorm.bias",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "pre_mlp_layernorm.weight",
    "pre_mlp_layernorm.bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
}
FIRST_STAGE = {"embedding.word_embeddings.weight", "embedding.position_embeddings.weight"}
LAST_STAGE = {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight"}
SUMMED_OVER_TP = {"layernorm.weight", "layernorm.bias", "linear_proj.bias", "linear_fc2.bias"}
"""Ends of the names whose gradients sequence parallelism adds up over TP."""


def dump(ranks: Server, layout: str, folder: Path, *more: str) -> list[dict[str, Any]]:
    """What every rank of a layout wrote, by rank."""
    chosen = LAYOUTS[layout].plus("--no-check-for-nan-in-loss-and-grad", *more)
    finished = ranks.run(chosen.nproc, SCRIPT, chosen.args, env={"DUMP_DIR": str(folder)})
    assert finished.code == 0, finished.out
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(chosen.nproc)]


def layers(*numbers: int) -> set[str]:
    return {f"decoder.layers.{number}.{name}" for number in numbers for name in DENSE_LAYER}


def names(found: dict[str, Any]) -> set[str]:
    return {entry["name"] for entry in found["entries"]}


def entry(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in found["entries"] if entry["name"] == name)


@pytest.fixture(scope="module")
def layout_a(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return dump(ranks, "A", tmp_path_factory.mktemp("layout_a"))


def test_tensor_and_pipeline_ranks_get_global_layers_and_replicas_one_file(layout_a: list[dict[str, Any]]) -> None:
    found = layout_a
    # rank = tp + 2 * (dp + 2 * pp)
    assert [(at["coordinates"]["tp"], at["coordinates"]["dp"], at["coordinates"]["pp"]) for at in found] == [
        *((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)),
        *((0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)),
    ]
    assert [names(at) for at in found] == 4 * [layers(0, 1) | FIRST_STAGE] + 4 * [layers(2, 3) | LAST_STAGE]
    assert [at["file"][0] for at in found[:3]] == [
        *("param_map_tp0pp0dp0.json", "param_map_tp1pp0dp0.json", "param_map_tp0pp0dp1.json")
    ]
    assert [at["file"][1] for at in found] == [
        *(None, None, "param_map_tp0pp0dp0.json", "param_map_tp1pp0dp0.json"),
        *(None, None, "param_map_tp0pp1dp0.json", "param_map_tp1pp1dp0.json"),
    ]


def test_the_tied_output_layer_and_the_split_axes_are_marked(layout_a: list[dict[str, Any]]) -> None:
    found = layout_a
    embedding = entry(found[0], "embedding.word_embeddings.weight")
    copy = entry(found[5], "output_layer.weight")
    assert [embedding["tied"], embedding["shared"], copy["tied"], copy["shared"]] == [True, False, True, True]
    # Half of 128 words and of 256 inner elements on each of two TP ranks; the second linear layer is split by column.
    assert (embedding["partition_dim"], embedding["shape"]) == (0, [64, 64])
    fc2 = entry(found[5], "decoder.layers.3.mlp.linear_fc2.weight")
    assert (fc2["local_name"], fc2["partition_dim"], fc2["shape"], fc2["dtype"]) == (
        *("decoder.layers.1.mlp.linear_fc2.weight", 1, [64, 128], "bfloat16"),
    )
    assert entry(found[5], "decoder.layers.3.mlp.linear_fc2.bias")["partition_dim"] is None


def test_plain_ddp_leaves_no_local_value_and_the_optimizer_takes_all(layout_a: list[dict[str, Any]]) -> None:
    found = layout_a
    # Replica mean on stage 0, TP rank 0: (1 + 3) / 2; on stage 1: (5 + 7) / 2; the tied weights add up both.
    tied = {"embedding.word_embeddings.weight": [8.0]}
    assert found[0]["reduced"] == {name: [2.0] for name in layers(0, 1) | FIRST_STAGE} | tied
    assert found[4]["reduced"] == {name: [6.0] for name in layers(2, 3) | LAST_STAGE} | {"output_layer.weight": [8.0]}
    assert [at["surviving"] for at in found] == 8 * [{}]


FP32_ACCUMULATION = ("--grad-reduce-in-bf16", "--ddp-param-name-patterns-for-fp32-local-accumulation")


@pytest.mark.parametrize(
    "more", [(), (*FP32_ACCUMULATION, "*linear_fc1*", "*input_layernorm*"), (*FP32_ACCUMULATION, "all")]
)
def test_the_distributed_optimizer_leaves_local_values_in_the_other_ranks_shards(
    ranks: Server, tmp_path: Path, more: tuple[str, ...]
) -> None:
    found = dump(ranks, "B", tmp_path, *more)
    for rank, at in enumerate(found):
        own_shards = {entry["name"]: entry["shards"] for entry in at["entries"] if entry["shards"]}
        assert own_shards == {name: [shard] for name, shard in at["host_shards"].items()}
        assert at["reduced"].keys() == own_shards.keys()
        # Nothing but this rank's own values, and nothing that sequence parallelism adds up over TP.
        assert {value for values in at["surviving"].values() for value in values} == {(rank + 1) / 4}
        assert not [name for name in at["surviving"] if any(name.endswith(end) for end in SUMMED_OVER_TP)]
        assert at["file"] == [f"param_map_tp{rank % 2}pp0dp{rank // 2}.json", None]
    held = {name for at in found[1::2] for name in at["reduced"]}
    assert held == layers(0, 1, 2, 3) | FIRST_STAGE | LAST_STAGE - {"output_layer.weight"}
    # Buffers are laid out from the last layer to the first, so the last one lies in the first shard. TP rank 1 there:
    # (2 + 4 + 6 + 8) / 4, and 4 more from TP rank 0 where sequence parallelism adds up.
    assert found[1]["reduced"]["decoder.layers.3.mlp.linear_fc1.weight"] == [5.0]
    assert found[1]["reduced"]["decoder.layers.3.input_layernorm.weight"] == [9.0]
    assert "decoder.layers.0.mlp.linear_fc1.weight" in found[1]["surviving"]


def test_virtual_stages_get_global_layers(ranks: Server, tmp_path: Path) -> None:
    found = dump(ranks, "E", tmp_path)
    # PP4 VPP2: stage s holds layer s in its first chunk and layer s + 4 in its second. rank = dp + 2 * pp
    edges = [FIRST_STAGE, set(), set(), LAST_STAGE]
    for rank, at in enumerate(found):
        stage = rank // 2
        assert names(at) == layers(stage, stage + 4) | edges[stage]
        assert entry(at, f"decoder.layers.{stage}.mlp.linear_fc1.bias")["chunk"] == 0
        assert entry(at, f"decoder.layers.{stage + 4}.mlp.linear_fc1.bias")["chunk"] == 1
        assert {f"decoder.layers.{stage}.mlp", f"decoder.layers.{stage + 4}.mlp"} <= set(at["modules"])
    assert (
        entry(found[7], "decoder.layers.7.mlp.linear_fc1.bias")["local_name"] == "decoder.layers.0.mlp.linear_fc1.bias"
    )


def test_multi_token_prediction_keeps_its_inner_numbers_and_ties_a_second_embedding(
    ranks: Server, tmp_path: Path
) -> None:
    found = dump(ranks, "E", tmp_path, "--mtp-num-layers", "1", "--position-embedding-type", "rope")
    assert "mtp.layers.0.mtp_model_layer.mlp.linear_fc1.weight" in names(found[7])
    embeddings = [entry(found[rank], "embedding.word_embeddings.weight") for rank in (0, 7)]
    assert [(each["tied"], each["shared"]) for each in embeddings] == [(True, False), (True, True)]


def test_expert_ranks_get_global_experts(ranks: Server, tmp_path: Path) -> None:
    found = dump(ranks, "C", tmp_path)
    # EP2 inside DP4: ranks 0 and 2 hold experts 0 to 3, ranks 1 and 3 experts 4 to 7.
    for rank, at in enumerate(found):
        first = 4 * (rank % 2)
        experts = {
            f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc{half}.weight"
            for layer in range(4)
            for expert in range(first, first + 4)
            for half in (1, 2)
        }
        assert {entry["name"] for entry in at["entries"] if entry["expert"]} == experts
        assert f"decoder.layers.2.mlp.experts.local_experts.{first}.linear_fc1" in at["modules"]
        assert (at["coordinates"]["ep"], at["coordinates"]["expert_dp"]) == (rank % 2, rank // 2)
        assert at["file"] == [f"param_map_tp0pp0dp{rank}ep{rank % 2}.json", None]
    # An expert is reduced over its two replicas and divided by all four: (2 + 4) / 4; dense: (1 + 2 + 3 + 4) / 4.
    owned = "decoder.layers.3.mlp.experts.local_experts.7.linear_fc2.weight"
    assert found[1]["reduced"][owned] == [1.5]
    assert found[1]["reduced"]["decoder.layers.1.mlp.router.weight"] == [2.5]
    assert found[1]["surviving"]["decoder.layers.0.mlp.experts.local_experts.4.linear_fc1.weight"] == [0.5]


def test_context_parallel_ranks_lie_between_tensor_and_data_parallel_ones(ranks: Server, tmp_path: Path) -> None:
    found = dump(ranks, "H", tmp_path)
    # rank = tp + 2 * (cp + 2 * dp); one buffer is shared by all four (cp, dp).
    for rank, at in enumerate(found):
        place = {"tp": rank % 2, "cp": rank // 2 % 2, "dp": rank // 4, "pp": 0, "ep": 0}
        assert {axis: at["coordinates"][axis] for axis in place} == place
        sizes = {"world": 8, "tp": 2, "cp": 2, "ep": 1, "dp": 2, "pp": 1, "expert_tp": 2, "expert_dp": 4, "vpp": 1}
        assert at["sizes"] == sizes
        original = f"param_map_tp{rank % 2}pp0dp0cp0.json"
        assert at["file"][1] == (None if rank < 2 else original)
    # TP rank 1: (2 + 4 + 6 + 8) / 4
    assert found[5]["reduced"]["decoder.layers.0.mlp.linear_fc1.weight"] == [5.0]
