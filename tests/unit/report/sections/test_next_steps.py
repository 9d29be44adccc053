"""What to do next, and the commands for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.report.blocks import Block, Point
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import next_steps, verdict
from tests.unit.diagnosis.factories import arbitration
from tests.unit.factories import ABORT, incident
from tests.unit.report.factories import bundled, described, opened_incident

LOOK = "open model.py:7; confirm with: python bundle/repro.py"


def causes(*following: str) -> tuple[RankedCause, ...]:
    return tuple(RankedCause("data", 0.5, (), (), (), what) for what in following)


def test_with_nothing_to_do_beyond_the_verdict_there_is_no_section() -> None:
    assert next_steps.describe(opened_incident(causes=causes(""))) is None
    assert next_steps.describe(opened_incident(causes=causes("halve it"))) is None


def test_experiments_come_first_each_once_then_the_call_and_the_files(tmp_path: Path) -> None:
    record = incident(causes=causes("halve it", "", "leave it out", "halve it"), missing_ranks=(3, 4))

    assert next_steps.describe(OpenedIncident(record, bundled(tmp_path))) == Block(
        "Next steps",
        points=(
            Point("halve it", "1."),
            Point("leave it out", "2."),
            Point("run the suspect call alone", "3.", command=f"python {tmp_path}/bundle/repro.py"),
            Point("copy the files of ranks 3, 4 into this directory, then run the report again", "4."),
        ),
    )


def test_a_step_that_names_the_reproduction_has_its_whole_command_below(tmp_path: Path) -> None:
    opened = OpenedIncident(incident(causes=causes(LOOK, "halve it")), bundled(tmp_path))

    assert described(next_steps.describe, opened).points == (
        Point("open model.py:7", "1.", command=f"python {tmp_path}/bundle/repro.py"),
        Point("halve it", "2."),
    )


def test_the_screening_command_has_the_layout_of_the_job() -> None:
    suspected = RankedCause("hardware_transient", 0.4, (), (), (), "the same steps again")

    assert described(next_steps.describe, opened_incident(causes=(suspected,), num_hosts=2)).points[1] == Point(
        "test devices and links without the model, on the hosts of the job",
        "2.",
        command="torchrun --nnodes 2 --nproc-per-node 4 -m megatron_nanguard screen --tp 2 --pp 2",
    )


def test_screening_is_not_proposed_for_a_cause_outside_the_hardware() -> None:
    unlikely = (
        RankedCause("numerics", 0.9, (), (), (), "halve it"),
        RankedCause("hardware_transient", 0.1, (), (), (), "again"),
    )

    assert len(described(next_steps.describe, opened_incident(causes=unlikely)).points) == 2


def test_at_most_five_steps_are_listed() -> None:
    assert len(described(next_steps.describe, opened_incident(causes=causes(*"abcdefgh"))).points) == 5


def test_a_job_that_goes_on_must_be_stopped_before_screening() -> None:
    hardware = (RankedCause("hardware_transient", 0.9, (), (), (), "move it"),)
    going = opened_incident(causes=hardware, policy=replace(ABORT, action="skip"))

    assert described(next_steps.describe, going).points[-1].text.startswith("stop the job, then test devices")
    assert described(verdict.describe, going).notes[-1] == "Stop the job first, then:"
    stopped = opened_incident(causes=hardware)
    assert described(next_steps.describe, stopped).points[-1].text.startswith("test devices")
    assert "Stop the job first, then:" not in described(verdict.describe, stopped).notes


def test_a_call_with_a_nan_among_its_inputs_is_a_step_but_not_in_the_verdict(tmp_path: Path) -> None:
    for is_given, num_commands in ((True, 0), (False, 1)):
        (tmp_path / str(is_given)).mkdir()
        calls = (arbitration(inputs_bad=is_given),)
        record = OpenedIncident(
            incident(causes=causes("halve it"), arbitrations=calls), bundled(tmp_path / str(is_given))
        )

        assert len(described(verdict.describe, record).commands) == num_commands
        assert described(next_steps.describe, record).points[-1].text == "run the suspect call alone"
