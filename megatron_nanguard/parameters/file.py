"""The file that keeps one rank's parameter names: `param_map_tp0pp1dp0.json`."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.parameters import ParameterMapFile


def map_file(parameters: ParameterMap, coordinates: Coordinates, sizes: ParallelSizes) -> tuple[str, ParameterMapFile]:
    """Return this rank's file name and content.

    Replicas that hold the same point to the first of them, so that a run of many replicas writes each map once.
    """
    name = file_name(coordinates, sizes)
    original = file_name(_first_replica(coordinates), sizes)
    is_copy = original != name and not parameters.is_sharded and _has_simple_replicas(sizes)
    record = ParameterMapFile(
        schema_version=SCHEMA_VERSION,
        coordinates=coordinates,
        sizes=sizes,
        same_as=original if is_copy else None,
        entries=() if is_copy else parameters.entries,
    )
    return name, record


def file_name(coordinates: Coordinates, sizes: ParallelSizes) -> str:
    """Return the name of a rank's parameter map."""
    return f"param_map_{coordinates.label(sizes)}.json"


def _first_replica(coordinates: Coordinates) -> Coordinates:
    """Return the place of the first rank with the same dense parameters and the same experts.

    Expert ranks are neighbours inside the data-parallel group, so the first replica of expert rank n is dp n.
    """
    return replace(coordinates, cp=0, dp=coordinates.ep)


def _has_simple_replicas(sizes: ParallelSizes) -> bool:
    # With CP or another TP size for experts, releases differ in where the expert ranks lie.
    return sizes.ep == 1 or (sizes.cp == 1 and sizes.expert_tp == sizes.tp)
