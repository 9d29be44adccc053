"""Drills in a run: parsed with the options, planted with the model, judged at exit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from megatron_nanguard.coordination.store import Store
from megatron_nanguard.drill.grammar import parse
from megatron_nanguard.drill.planted_drills import PlantedDrills
from megatron_nanguard.drill.spec import check_ranks
from megatron_nanguard.errors import DrillError
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.parameters.parameter_map import ParameterMap

log = logging.getLogger("megatron_nanguard")

CHECKPOINT_MARK = "NANGUARD_DRILL.txt"
UNFIRED_EXIT_CODE = 66


class RunDrills:
    """The drills of this rank.

    Args:
        spec: as the user wrote it.
    Attributes:
        planted: one per optimizer.
    """

    def __init__(self, spec: str, rank: int, world_size: int) -> None:
        self._spec = spec
        self._drills = parse(spec)
        check_ranks(self._drills, world_size)
        self._rank, self._world_size = rank, world_size
        self.planted: list[PlantedDrills] = []

    def attach(self, chunks: Sequence[ModelChunk], names: ParameterMap, counters: Store) -> PlantedDrills:
        """Plant this rank's drills in a model.

        Raises:
            DrillError: a drill names this rank, and its target is not here; or it names all ranks, and this is the
                last one without the target.
        """
        planted = PlantedDrills(self._drills, self._rank)
        planted.attach(chunks, name_modules(chunks), names)
        for drill in planted.without_target():
            if int(counters.add(drill.text, 1)) == self._world_size:
                raise DrillError(
                    f"drill {drill.text!r}: no rank has its target; names are global, see param_map_*.json"
                )
        self.planted.append(planted)
        return planted

    def mark_checkpoints(self) -> None:
        """Leave a note beside the checkpoints: they come from a run with planted faults."""
        directory = host_program.save_directory()
        if directory is None:
            return
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            note = (
                f"The checkpoints in this directory come from a drill: faults were planted on purpose.\n{self._spec}\n"
            )
            (Path(directory) / CHECKPOINT_MARK).write_text(note)
        except OSError as error:
            log.warning("cannot mark the checkpoints in %s as a drill's: %s", directory, error)

    def unfired(self) -> list[str]:
        """Drills of this rank that never went off, as the user wrote them, and why."""
        outcomes = [outcome for planted in self.planted for outcome in planted.record().drills]
        return [f"{one.text!r} never fired ({one.why_not})" for one in outcomes if one.is_planted and not one.fired]
