"""Parameters of many ranks are joined by name, losses by micro-batch."""

from __future__ import annotations

import math
from dataclasses import replace

from megatron_nanguard.postmortem.merging.values import LISTED_PARAMETERS, LossMerger, ParameterMerger
from megatron_nanguard.records.incident import MergedParameter, MicrobatchLosses
from megatron_nanguard.records.postmortem import BadParameter, LocalGradients, Microbatch, Postmortem, ReducedState
from tests.unit.factories import SIZES, bad_parameter, postmortem


def local(rank: int, *parameters: BadParameter, truncated: int = 0) -> Postmortem:
    return postmortem(rank, local=LocalGradients(math.nan, parameters, {}, truncated))


def names_of(*postmortems: Postmortem) -> list[str]:
    merger = ParameterMerger()
    for record in postmortems:
        merger.add(record)
    return [parameter.name for parameter in merger.merged(SIZES)[0]]


def test_two_ranks_with_one_name_become_one_line() -> None:
    merger = ParameterMerger()
    merger.add(local(5, bad_parameter("w", norm=2.0, pattern="finite", nan_count=0)))
    merger.add(local(4, bad_parameter("w", norm=math.inf, pattern="inf", nan_count=0, inf_count=2)))

    assert merger.merged(SIZES) == (
        (MergedParameter("w", "local", "inf", math.inf, 0, 2, (4, 5), 2, ("tp0pp1dp0", "tp1pp1dp0")),),
        0,
        (),
    )


def test_nan_is_worse_than_inf_in_either_order() -> None:
    nan, inf = bad_parameter("w"), bad_parameter("w", norm=math.inf, pattern="inf", nan_count=0, inf_count=1)
    for first, second in ((nan, inf), (inf, nan)):
        merger = ParameterMerger()
        merger.add(local(0, first))
        merger.add(local(1, second))

        (entry,), _, _ = merger.merged(SIZES)

        assert entry.norm is not None and math.isnan(entry.norm)
        assert (entry.pattern, entry.nan_count, entry.inf_count) == ("nan+inf", 3, 1)


def test_counts_of_ranks_that_could_count_are_summed() -> None:
    merger = ParameterMerger()
    merger.add(local(0, bad_parameter("w", nan_count=None, inf_count=None)))
    merger.add(local(1, bad_parameter("w", nan_count=2)))
    merger.add(local(2, bad_parameter("w", nan_count=3)))

    assert merger.merged(SIZES)[0][0].nan_count == 5


def test_the_layer_nearest_to_the_loss_comes_first() -> None:
    names = (
        "embedding.word_embeddings.weight",
        "decoder.layers.2.w",
        "decoder.layers.10.w",
        "decoder.final_layernorm.weight",
        "mtp.layers.0.w",
    )

    assert names_of(local(0, *(bad_parameter(name) for name in names))) == [
        "decoder.final_layernorm.weight",
        "mtp.layers.0.w",
        "decoder.layers.10.w",
        "decoder.layers.2.w",
        "embedding.word_embeddings.weight",
    ]


def test_what_was_bad_before_the_reduction_comes_before_what_was_bad_after_it() -> None:
    both = postmortem(
        0,
        local=LocalGradients(math.nan, (bad_parameter("decoder.layers.0.w"),), {}, 0),
        reduced=ReducedState(math.nan, 1, (bad_parameter("decoder.layers.9.w"),), 0),
    )

    assert names_of(both) == ["decoder.layers.0.w", "decoder.layers.9.w"]


def test_a_long_list_is_cut_and_counted() -> None:
    merger = ParameterMerger()
    merger.add(local(0, *(bad_parameter(f"decoder.layers.{layer}.w") for layer in range(LISTED_PARAMETERS + 3))))

    listed, left_out, _ = merger.merged(SIZES)

    assert (len(listed), left_out) == (LISTED_PARAMETERS, 3)


def test_many_ranks_are_counted_and_the_first_listed() -> None:
    merger = ParameterMerger()
    for rank in reversed(range(100)):
        record = local(0, bad_parameter("w"))
        merger.add(replace(record, coordinates=replace(record.coordinates, rank=rank)))

    (entry,), _, _ = merger.merged(SIZES)

    assert entry.num_ranks == 100
    assert entry.ranks == tuple(range(64))


def test_ranks_that_cut_their_lists_are_counted() -> None:
    merger = ParameterMerger()
    merger.add(local(0, bad_parameter("w"), truncated=9))
    merger.add(local(1, bad_parameter("w")))

    assert merger.merged(SIZES)[2] == ("lists of bad parameters that were cut short: 1",)


def test_ranks_without_a_loss_add_nothing() -> None:
    merger = LossMerger()
    merger.add(0, [Microbatch(0, None, 64)])

    assert merger.merged() == ()


def test_a_loss_that_is_not_finite_is_listed_and_not_in_the_range() -> None:
    merger = LossMerger()
    merger.add(7, [Microbatch(1, math.nan, 64), Microbatch(0, 3.0, 64)])
    merger.add(6, [Microbatch(0, 2.0, 64), Microbatch(1, 5.0, 64)])
    merger.add(5, [Microbatch(1, math.inf, 64)])

    assert merger.merged() == (
        MicrobatchLosses(0, 2, 2.0, 3.0, ()),
        MicrobatchLosses(1, 3, 5.0, 5.0, (5, 7)),
    )


def test_no_finite_loss_leaves_no_range() -> None:
    merger = LossMerger()
    merger.add(4, [Microbatch(0, -math.inf, 64)])

    assert merger.merged() == (MicrobatchLosses(0, 1, None, None, (4,)),)
