"""One reported incident against the expected one, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.ranks.layouts import Layout
from tests.ranks.planted.incident import Incident
from tests.ranks.run_files import RunFiles

CLEAN_FILE_BYTES = 4096
RANK_FILE_BYTES = 1 << 20


def check_incident(run: RunFiles, step: int, expected: Incident, layout: Layout) -> None:
    """The merged incident and every rank's post-mortem of a step that was skipped."""
    merged = run.merged(step)
    check_ranks(merged, expected, layout.nproc)
    check_parameters(merged, expected)
    check_postmortems(run, step, expected, layout)
    assert merged["policy"]["action"] == "skip"


def place(layout: Layout, rank: int) -> str:
    """Where a rank stands, as file names say it: tp fastest, then cp, dp, pp; ep is the fast part of dp."""
    rest, tp = divmod(rank, layout.tp)
    rest, cp = divmod(rest, layout.cp)
    pp, dp = divmod(rest, layout.dp)
    context = f"cp{cp}" if layout.cp > 1 else ""
    return f"tp{tp}pp{pp}dp{dp}{context}" + (f"ep{dp % layout.ep}" if layout.ep > 1 else "")


def check_ranks(found: Mapping[str, Any], expected: Incident, nproc: int) -> None:
    ranks = {name: set(members) for name, members in found["ranks"].items()}
    clean = set(range(nproc)) - expected.before - expected.after_only
    assert ranks == {"bad_before": expected.before, "bad_after_only": expected.after_only, "clean": clean}
    assert found["kind"] == expected.kind
    assert [group["indices"] for group in found["groups"]] == [as_lists(group) for group in expected.groups]
    assert {rank for group in found["groups"] for rank in group["ranks"]} == expected.before
    if expected.words:
        assert tuple(group["words"] for group in found["groups"]) == expected.words
    carried = {one["rank"]: one["by"] for one in found["infected"]}
    assert carried == {rank: by for by, reached in expected.by.items() for rank in reached}
    losses = {one["index"]: set(one["nonfinite_ranks"]) for one in found["losses"] if one["nonfinite_ranks"]}
    assert losses == expected.losses


def check_parameters(found: Mapping[str, Any], expected: Incident) -> None:
    names: dict[str, set[str]] = {"local": set(), "reduced": set()}
    counts: dict[str, int | None] = {"local": None, "reduced": None}
    for parameter in found["parameters"]:
        where = parameter["where"]
        names[where].add(parameter["name"])
        assert parameter["pattern"] == expected.pattern, parameter
        if parameter["nan_count"] is not None:
            counts[where] = (counts[where] or 0) + parameter["nan_count"]
    assert names == {"local": expected.local, "reduced": expected.reduced}
    if expected.counts is not None:
        assert (counts["local"], counts["reduced"]) == expected.counts


def as_lists(group: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {axis: list(indices) for axis, indices in group.items()}


def check_postmortems(run: RunFiles, step: int, expected: Incident, layout: Layout) -> None:
    """Every rank wrote a valid file under its own name, and all say the same of the whole."""
    merged, files = run.merged(step), run.postmortems(step)
    assert list(files) == [f"rank{rank:05d}_{place(layout, rank)}.json" for rank in range(layout.nproc)]
    for rank, (name, own) in enumerate(files.items()):
        assert (own["step"], own["phase"], own["policy"]) == (step, "complete", "skip")
        assert (own["ranks"], own["groups"], own["kind"]) == (merged["ranks"], merged["groups"], merged["kind"])
        size = (run.path / "incidents" / f"step_{step:08d}" / name).stat().st_size
        touched = rank in expected.before | expected.after_only
        assert size <= (RANK_FILE_BYTES if touched else CLEAN_FILE_BYTES), f"{name}: {size} bytes"
