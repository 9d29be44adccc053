"""Charts that compare the data-parallel replicas: gradient norms by layer, and losses by micro-batch.

All replicas hold the same weights, so a replica that differs had other data, another device, or a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.phrase import FOLLOWED, LISTED, joined, phrase
from megatron_nanguard.report.formatting import and_more, as_sentence
from megatron_nanguard.report.html.pictures import line_chart
from megatron_nanguard.report.html.pictures.axes import layers_in_order, short_names
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.html.pictures.norm_heatmap import badness
from megatron_nanguard.report.sections.norms_by_layer import scaled_words

BAD: Final = (RankState.ORIGIN, RankState.BAD_BEFORE)
NORMS: Final = phrase(
    "Norms of the local gradients of {where}, one line per data-parallel replica, thick where it was bad "
    "before the reduction. Replicas hold the same weights: one that differs had other data or a fault."
)


LOSSES: Final = phrase("The loss of each micro-batch of the step, one line per data-parallel replica.")


def compare_norms(rows: Sequence[RankRow], sizes: ParallelSizes, loss_scale: float | None) -> Figure | None:
    """Compare the gradient norms of one pipeline stage and tensor-parallel rank over all replicas.

    Args:
        rows: one per rank.
        sizes: the parallel layout.
        loss_scale: factor on the loss, and so on every norm; None where there is none.
    Returns:
        The chart; None where fewer than two replicas recorded norms.
    """
    known = [row for row in rows if row.norm_by_layer]
    if not known:
        return None
    # The place that is compared is that of the origin, else of the first rank in the worst state.
    states = list(RankState)
    worst = min(known, key=lambda row: (states.index(row.state), row.rank))
    place_of = attrgetter("coordinates.pp", "coordinates.cp", "coordinates.tp")
    peers = [row for row in known if place_of(row) == place_of(worst)]
    if len(peers) < 2:
        return None
    layers = layers_in_order(peers)
    series = [
        line_chart.Series(
            f"dp {row.coordinates.dp} (rank {row.rank})",
            tuple(row.norm_by_layer.get(layer) for layer in layers),
            row.state in BAD,
        )
        for row in peers
    ]
    axes = zip(("pp", "cp", "tp"), place_of(worst), (sizes.pp, sizes.cp, sizes.tp), strict=True)
    where = " ".join(f"{axis}{index}" for axis, index, size in axes if size > 1)
    return Figure(
        name="replicas",
        title=phrase("Replica comparison: gradient norms"),
        caption=joined(
            FOLLOWED,
            (NORMS.format(where=where or phrase("the model")), *map(as_sentence, scaled_words(loss_scale))),
        ),
        traces=line_chart.traces(series),
        layout=line_chart.layout(series, short_names(layers), phrase("norm"), "log"),
        width=160 + 30 * len(layers),
    )


def compare_losses(rows: Sequence[RankRow]) -> Figure | None:
    """Compare the losses of the replicas, micro-batch by micro-batch; None where no rank computed a loss."""
    losses: dict[int, dict[int, float]] = defaultdict(dict)
    bad: set[int] = set()
    for row in rows:
        replica = losses[row.coordinates.dp]
        for one in row.microbatches:
            if one.loss is not None and badness(one.loss) >= badness(replica.get(one.index, one.loss)):
                replica[one.index] = one.loss
        if row.state in BAD:
            bad.add(row.coordinates.dp)
    indices = sorted({index for replica in losses.values() for index in replica})
    if not indices:
        return None
    series = [
        line_chart.Series(f"dp {replica}", tuple(seen.get(index) for index in indices), replica in bad)
        for replica, seen in sorted(losses.items())
        if seen
    ]
    return Figure(
        name="losses",
        title=phrase("Losses by micro-batch"),
        caption=_loss_caption(series, indices),
        traces=line_chart.traces(series),
        layout=line_chart.layout(series, [str(index) for index in indices], phrase("loss"), "linear"),
        width=160 + 14 * len(indices),
    )


def _loss_caption(series: Sequence[line_chart.Series], indices: Sequence[int]) -> str:
    bad = [
        phrase("{replica} in micro-batch {index}", replica=one.name, index=indices[position])
        for one in series
        for position, value in enumerate(one.values)
        if value is not None and badness(value)[0]
    ]
    finding = phrase("Not finite: {places}.", places=and_more(LISTED, bad)) if bad else phrase("Every loss is finite.")
    return joined(FOLLOWED, (LOSSES, finding))
