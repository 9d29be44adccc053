"""What one run writes outside of incidents: fingerprint, parameter maps, drill record, status at exit."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.parameters.parameter_map import ParameterMap, map_file
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.run.drill import DrillFile, DrillPlan
from megatron_nanguard.records.run.fingerprint import ENVIRONMENT_ALLOW_LIST, FINGERPRINT_NAME, Fingerprint, HostChange
from megatron_nanguard.records.run.status import Status
from megatron_nanguard.settings import PREFIX, Settings, without_ours

log = logging.getLogger("megatron_nanguard")


class RunFiles:
    """The directory of one run and this rank's files in it.

    Args:
        is_first: asked when something cannot be written: whether no other rank has logged that yet.
    """

    def __init__(self, settings: Settings, run_id: str, rank: int, is_first: Callable[[], bool]) -> None:
        self.run_id, self.rank, self._is_first = run_id, rank, is_first
        root = os.path.join(host_program.save_directory() or ".", "nanguard") if settings.dir is None else settings.dir
        # Half of the time of a stage: the rest of the stage needs some too.
        self.directory = RunDirectory(Path(root), run_id, self._complain, settings.deadline / 2)
        self._maps: set[str] = set()

    def _complain(self, text: str) -> None:
        if self._is_first():
            log.warning(text)

    def write_fingerprint(self, world_size: int, changes: tuple[HostChange, ...]) -> None:
        """What the run was started with. One rank writes it."""
        self.directory.write(
            FINGERPRINT_NAME,
            Fingerprint(
                run_id=self.run_id,
                started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                world_size=world_size,
                versions=host_program.versions(),
                arguments=_arguments(),
                environment={name: os.environ[name] for name in ENVIRONMENT_ALLOW_LIST if name in os.environ},
                kernel_backends=host_program.kernel_backends(),
                host_changes=changes,
                command_line=_command_line(),
            ),
        )

    def write_map(self, names: ParameterMap, coordinates: Coordinates, sizes: ParallelSizes) -> None:
        """The names of this rank's parameters; a second optimizer's get a number."""
        name, record = map_file(names, coordinates, sizes)
        if name in self._maps:
            name = name.replace(".json", f".{len(self._maps)}.json")
        self._maps.add(name)
        self.directory.write(name, record)

    def write_drill_plan(self, spec: str) -> None:
        """What is to be planted. One rank writes it; no diagnosis reads it."""
        self.directory.write("drill.json", DrillPlan(spec=spec))

    def write_drill(self, record: DrillFile) -> None:
        """What became of this rank's drills. No diagnosis reads it."""
        self.directory.write(f"drill/rank{self.rank:05d}.json", record)

    def write_status(
        self,
        coordinates: Coordinates | None,
        fired: Mapping[str, int],
        counts: Mapping[str, int],
        notes: tuple[str, ...],
    ) -> None:
        """How the guard fared on this rank."""
        known = {name: counts.get(name, 0) for name in ("steps_guarded", "alarms", "incidents", "scale_checks")}
        status = Status(rank=self.rank, coordinates=coordinates, points_fired=dict(fired), notes=notes, **known)
        self.directory.write(f"status/rank{self.rank:05d}.json", status)


def _arguments() -> dict[str, str]:
    """The host's arguments without the drill, which only drill files may name."""
    found = host_program.arguments()
    drill = f"{PREFIX}_drill"
    return {} if found is None else {name: str(value) for name, value in sorted(vars(found).items()) if name != drill}


def _command_line() -> tuple[str, ...]:
    """The command line, where the host has parsed one; else it belongs to another program, and is not written down."""
    return () if host_program.arguments() is None else tuple(without_ours(sys.argv))
