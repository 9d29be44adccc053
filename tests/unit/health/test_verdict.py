"""From the output of the tools to the report: a new error on the device of the origin changes the verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.health.ascend import NpuSmi
from megatron_nanguard.health.health_watch import HealthWatch
from megatron_nanguard.health.nvidia import Nvml
from megatron_nanguard.health.polling import Source
from megatron_nanguard.postmortem.merging.incident import merge
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.records.suspect_call import Arbitration
from tests.unit.diagnosis.factories import sink, to_origin, trace, traced_origin
from tests.unit.factories import demo_postmortem
from tests.unit.health import samples
from tests.unit.health.stand_ins import UUID, put_npu_smi, put_nvml
from tests.unit.report.factories import report_text

Changed = Callable[[int], None]
"""Let the tool report this many uncorrectable errors from now on."""

NUMERICS = Arbitration(
    rank=5,
    operator="aten.log.default",
    module="decoder.layers.3.mlp",
    repeats=8,
    repeats_bad=8,
    peer="bad",
    reference_fp64="bad",
)


@pytest.fixture(params=["npu-smi", "NVML"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Source, Changed]:
    """A source whose readings can be changed."""
    if request.param == "NVML":
        nvml = put_nvml(monkeypatch)
        return Nvml(UUID), lambda lost: setattr(nvml, "uncorrected", lost)
    put_npu_smi(monkeypatch, tmp_path / "tool", samples.npu_smi())
    return NpuSmi("1"), lambda lost: put_npu_smi(monkeypatch, tmp_path / "tool", samples.npu_smi(double=lost))


def watched(rank: int, tool: tuple[Source, Changed], lost: int) -> DeviceHealth:
    """The device of one rank, healthy at the start."""
    source, change = tool
    change(0)
    watch = HealthWatch(rank, f"device {rank}", "", [source])
    assert watch.report(30.0).problems == ()
    change(lost)
    watch.poll()
    return watch.report(30.0)


def concluded(tool: tuple[Source, Changed], lost: dict[int, int]) -> Incident:
    """The demo's incident, on devices that lost data; its call fails everywhere, in float64 too."""
    files = []
    for rank in range(8):
        replay = ReplaySummary(done=True, exact=True, passes=(ReplayPass("plain", "yes"),))
        calls = (NUMERICS,) if rank == 5 else ()
        health = watched(rank, tool, lost.get(rank, 0)) if rank in (2, 5) else None
        changes = {"replay": replay, "arbitrations": calls, "health": health, "audited": True}
        files.append(demo_postmortem(rank).__class__(**{**vars(demo_postmortem(rank)), **changes}))
    traces = [trace(5, origins=(traced_origin(),), sinks=(sink(to_origin()),))]
    merged = conclude(merge(files, exchanged=None, policy=None), traces)
    return from_json(Incident, to_json(merged))


def test_a_new_error_on_the_device_of_the_origin_changes_the_verdict_and_is_reported(
    tool: tuple[Source, Changed], tmp_path: Path
) -> None:
    healthy, broken = concluded(tool, {}), concluded(tool, {5: 2})
    assert (healthy.causes[0].cause, healthy.causes[0].confidence) == ("numerics", 0.95)
    assert (broken.causes[0].cause, broken.causes[0].confidence) == ("hardware_persistent", 0.99)
    assert [one.rank for one in broken.health] == [5, 2]

    text = report_text(broken, tmp_path)
    assert "the device of rank 5 itself reports an uncorrectable error since the start of the run" in text
    assert "The hardware under rank 5 reports an uncorrectable error since the start of the run." in text
    assert "rank 2, healthy peer, " in text

    silent = report_text(healthy, tmp_path)
    assert "uncorrectable error since" not in silent
    assert (
        "No device that was read reports a new uncorrectable error; a device without one may still be faulty." in silent
    )


def test_a_new_error_on_another_device_is_only_reported(tool: tuple[Source, Changed], tmp_path: Path) -> None:
    found = concluded(tool, {2: 2})
    assert found.causes[0].cause == "numerics"
    assert "The hardware under rank 2 reports an uncorrectable error" in report_text(found, tmp_path)
