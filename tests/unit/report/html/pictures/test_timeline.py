"""What is known about the step, by micro-batch and phase."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.records.incident import Infected, MicrobatchLosses
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.html.pictures.timeline import timeline
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import incident
from tests.unit.report.html.factories import demo_incident


def marks(figure: Figure | None) -> list[Any]:
    """Symbol and colour of each kind of mark, and the slots of its marks."""
    assert figure is not None
    phases, rows = figure.layout["xaxis"]["ticktext"], figure.layout["yaxis"]["ticktext"]
    return [
        (
            trace["marker"]["symbol"],
            trace["marker"]["color"],
            [(rows[y], phases[int(x)]) for x, y in zip(trace["x"], trace["y"], strict=True)],
        )
        for trace in figure.traces
    ]


def test_origins_first_uses_and_losses_are_in_their_micro_batch_and_phase() -> None:
    figure = timeline(demo_incident())

    assert marks(figure) == [
        ("triangle-right", "bad", [("micro-batch 2", "backward")]),
        ("triangle-right", "infected", [("whole step", "finalize")]),
        ("square", "origin", [("micro-batch 2", "backward")]),
    ]
    assert figure is not None
    assert [trace["customdata"] for trace in figure.traces[:2]] == [
        ["bad values reach ranks 0, 1, 4"],
        ["bad values reach rank 2"],
    ]
    assert figure.caption.endswith("Micro-batches in which nothing bad is known are not drawn: 0, 1, 3.")


def test_a_loss_that_is_not_finite_is_in_the_forward_phase() -> None:
    losses = (MicrobatchLosses(0, 2, 4.5, 4.75, ()), MicrobatchLosses(1, 2, 4.5, 4.5, (1,)))
    assert marks(timeline(incident(losses=losses))) == [("x", "bad", [("micro-batch 1", "forward")])]


def test_of_many_micro_batches_those_with_a_mark_are_drawn() -> None:
    losses = tuple(MicrobatchLosses(index, 1, 4.5, 4.5, (0,) if index == 300 else ()) for index in range(512))
    figure = timeline(incident(losses=losses))
    assert figure is not None
    assert figure.layout["yaxis"]["ticktext"] == ["micro-batch 300", "whole step"]
    assert figure.caption.endswith("nothing bad is known are not drawn: 0-299, 301-511.")


def test_too_many_marked_micro_batches_are_cut_and_those_with_an_origin_kept() -> None:
    losses = tuple(MicrobatchLosses(index, 1, 4.5, 4.5, (0,) if index < 20 else ()) for index in range(32))
    began = origin(microbatch=30, phase="backward")
    figure = timeline(incident(losses=losses, origin=(began,)))

    assert figure is not None
    drawn = [*range(15), 30]
    assert figure.layout["yaxis"]["ticktext"] == [*(f"micro-batch {index}" for index in drawn), "whole step"]
    assert figure.caption.endswith("nothing bad is known are not drawn: 20-29, 31.")
    assert marks(figure) == [
        ("x", "bad", [(f"micro-batch {index}", "forward") for index in range(15)]),
        ("square", "origin", [("micro-batch 30", "backward")]),
    ]


def test_an_unknown_phase_and_an_unknown_first_use_are_left_out() -> None:
    strange = incident(origin=(origin(phase="<b>"),), infected=(Infected(1, "recv_", "g", (0,), "soon"),))
    assert timeline(strange) is None


def test_finite_losses_alone_are_no_timeline() -> None:
    assert timeline(incident(losses=(MicrobatchLosses(0, 2, 4.5, 4.75, ()),))) is None
