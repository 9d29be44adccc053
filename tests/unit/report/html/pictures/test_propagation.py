"""The propagation graph of an incident, and how it is drawn."""

from __future__ import annotations

from megatron_nanguard.records.incident import Infected
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.html.pictures.propagation import propagation_figure
from megatron_nanguard.report.html.pictures.propagation_graph import propagation_graph
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import incident
from tests.unit.report.html.factories import demo_incident


def words_of(figure: Figure) -> list[str]:
    """The words beside each node."""
    return [note["text"] for note in figure.layout["annotations"] if not note["showarrow"]]


def test_nodes_are_sorted_by_the_messages_before_them_and_then_by_rank() -> None:
    drawn = propagation_graph(demo_incident())

    assert [(node.name, node.state, node.column, node.source) for node in drawn.nodes] == [
        ("rank 5", "origin", 0, None),
        ("rank 1", "bad", 1, 0),
        ("rank 4", "bad", 1, 0),
        ("rank 0", "bad", 2, 2),
        ("rank 2", "infected", 3, 3),
    ]
    assert drawn.nodes[0].steps == ("mul in decoder.layers.3", "add_ in a.weight")
    assert drawn.left_out == 0


def test_ranks_that_no_origin_leads_to_begin_their_own_tree() -> None:
    reduction = "data-parallel reduction"
    drawn = propagation_graph(incident(infected=(Infected(3, reduction, "g", (1,)), Infected(2, reduction, "h", (0,)))))

    assert [(node.name, node.state, node.source) for node in drawn.nodes] == [
        ("rank 0", "bad", None),
        ("rank 1", "bad", None),
        ("rank 2", "infected", 0),
        ("rank 3", "infected", 1),
    ]


def test_the_middle_of_a_long_path_is_counted() -> None:
    path = tuple(f"op{step}" for step in range(10))
    figure = propagation_figure(incident(origin=(origin(path=path),)))
    assert figure is not None
    assert words_of(figure)[0] == "log in L3 mlp<br>then op1, op2, op3, ... 5 more, op9"


def test_every_node_names_the_message_that_made_it_bad_and_the_first_use() -> None:
    figure = propagation_figure(demo_incident())

    assert figure is not None
    assert words_of(figure)[1:] == [
        "PP recv from rank 5<br>backward of micro-batch 2, L1",
        "TP all-reduce<br>backward of micro-batch 2, a",
        "PP recv from rank 4<br>backward of micro-batch 2, L1",
        "DP gradient all-reduce<br>finalize",
    ]
    (first,) = [trace for trace in figure.traces if "lines" in trace["mode"]]
    # three columns fit into 820 pixels beside 260 for words: 186 each; node 0 has two lines of words
    assert (first["x"][:5], first["y"][:5]) == ([0, 14, 14, 186, None], [52, 52, 104, 104, None])
    assert "dash" not in first["line"]
    assert not figure.layout["showlegend"]
    assert figure.layout["yaxis"]["ticktext"] == ["rank 5", "rank 1", "rank 4", "rank 0", "rank 2"]
    assert figure.layout["xaxis"]["ticktext"] == ["it began", "after 1 message", "after 2 messages", "after 3 messages"]
    marks = [trace for trace in figure.traces if trace["mode"] == "markers"]
    assert [trace["marker"]["color"] for trace in marks] == ["origin", "bad", "infected"]
    assert "TP all-reduce<br>allreduce_ no. 39" in marks[1]["customdata"][1]


def test_a_message_to_ranks_that_were_bad_already_has_its_own_arrow() -> None:
    tied = Infected(4, "tied embeddings", "g", (0,), "finalize", "allreduce_ no. 0", ("output_layer.weight",))

    figure = propagation_figure(demo_incident(also_infected=(tied,)))

    assert figure is not None
    assert words_of(figure)[2].endswith("<br>also tied embeddings: output_layer.<br>weight")
    (later,) = [trace for trace in figure.traces if "dash" in trace.get("line", {})]
    # from rank 0 in the third column, past the words of the last one that end at 3 * 186 + 260, back to rank 4
    assert later["x"] == [372, 818, 818, 186, None]
    assert figure.layout["showlegend"]
    assert "A dashed arrow" in figure.caption


def test_without_an_origin_no_node_is_called_the_origin() -> None:
    figure = propagation_figure(incident(infected=(Infected(3, "data-parallel reduction", "g", (1,)),)))
    assert figure is not None
    assert figure.layout["xaxis"]["ticktext"] == ["bad before", "after 1 message"]
    assert figure.caption.startswith("Where it began is not known")


def test_transfers_beyond_the_limit_are_counted() -> None:
    many = tuple(Infected(rank, f"recv_ no. {rank}", "g", (5,)) for rank in range(10, 60))
    figure = propagation_figure(demo_incident(infected=many))
    assert figure is not None
    assert figure.caption.endswith("18 further transfers of bad values left out.")


def test_without_a_spread_nothing_is_drawn() -> None:
    assert propagation_figure(incident()) is None
    assert propagation_figure(incident(origin=(origin(path=()),))) is None
