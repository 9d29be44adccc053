from __future__ import annotations

from pathlib import Path
from typing import Any


def test_gloo_takes_the_place_of_nccl_without_its_options(mapped: Any, tmp_path: Path) -> None:
    distributed = mapped.distributed
    distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", world_size=1, rank=0, device_id=mapped.device("cuda:0")
    )
    group = distributed.new_group([0], backend="nccl", pg_options=object())
    x = mapped.ones(1, device="cuda")

    distributed.barrier(device_ids=[0])
    distributed.all_reduce(x, group=group)

    assert distributed.get_backend() == distributed.get_backend(group) == "gloo"
    assert x.tolist() == [1.0]
    distributed.destroy_process_group()
