"""Script of `test_names.py`: build the model, reduce known gradients once, write the names on each rank; no training.

Before the reduction every gradient element of rank r is r + 1, so a value shows whose gradients were summed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import megatron.training.training as host
from megatron.core.distributed import finalize_model_grads

from megatron_nanguard.cpurun import pretrain_gpt
from megatron_nanguard.megatron_api.buffers import grad_buffers
from megatron_nanguard.megatron_api.pieces import Piece, reduced_pieces, surviving_local_pieces
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.parameters.parameter_map import ParameterMap, map_file
from megatron_nanguard.topology.coordinates import read


def dump_instead_of_training(_: Any, chunks: Sequence[Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Stand in for `train`: one reduction, one file per rank."""
    coordinates, sizes = read(chunks)
    parameters = ParameterMap(chunks, sizes)
    for chunk in chunks:
        for buffer in grad_buffers(chunk):
            for gradients in (buffer.grad_data, *buffer.extra_main_grads):
                gradients.fill_(coordinates.rank + 1)
    finalize_model_grads(chunks)
    file_name, file = map_file(parameters, coordinates, sizes)
    written = {
        "coordinates": dataclasses.asdict(coordinates),
        "sizes": dataclasses.asdict(sizes),
        "entries": [dataclasses.asdict(entry) for entry in parameters.entries],
        "modules": sorted(name_modules(chunks)),
        "reduced": values_by_name(parameters, reduced_pieces(chunks)),
        "surviving": values_by_name(parameters, surviving_local_pieces(chunks)),
        "host_shards": {parameters.entry(param).name: shard for param, shard in host_shards(optimizer)},
        "file": [file_name, file.same_as],
    }
    Path(os.environ["DUMP_DIR"], f"rank{coordinates.rank}.json").write_text(json.dumps(written))
    raise SystemExit(0)


def values_by_name(parameters: ParameterMap, pieces: Sequence[Piece]) -> dict[str, list[float]]:
    """The different values of the elements of each parameter."""
    values: dict[str, set[float]] = defaultdict(set)
    for piece in pieces:
        for entry, (_, start, end, _) in parameters.segments(piece):
            values[entry.name].update(piece.data[start:end].unique().tolist())
    return {name: sorted(seen) for name, seen in values.items()}


def host_shards(optimizer: Any) -> Iterable[tuple[Any, list[int]]]:
    """Megatron's own word for the part of each parameter that this rank's distributed optimizer owns."""
    for leaf in optimizer.chained_optimizers:
        for param in getattr(leaf, "model_param_gbuf_map", ()):
            owned = leaf._get_model_param_range_map(param)["param"]
            yield param, [owned.start, owned.end]


host.train = dump_instead_of_training
pretrain_gpt.main()
