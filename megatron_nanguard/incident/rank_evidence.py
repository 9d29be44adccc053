"""What this rank knows of its own gradients after an alarm: counts where the values still exist, norms elsewhere."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.megatron_api.pieces import surviving_local_pieces
from megatron_nanguard.parameters.counting import count_nonfinite
from megatron_nanguard.records.postmortem import BadParameter, Kind, LocalGradients, Microbatch, ReducedState
from megatron_nanguard.records.run.parameters import ParameterEntry, layer_of
from megatron_nanguard.records.trace import pattern_of

NORM_DIGITS = 6
"""Significant digits of a layer's norm in the file; fp32 has seven."""


@dataclass(frozen=True)
class Signs:
    """Where one rank saw bad values.

    Attributes:
        bad_before: an element of this rank's own gradients was not finite before the reduction.
        bad_after: an element of what the optimizer would consume is not finite.
        bad_loss: the loss of a micro-batch is not finite.
        suspicious_before, suspicious_after: the norm is not finite, or too large to be summed over the ranks.
    """

    bad_before: bool = False
    bad_after: bool = False
    bad_loss: bool = False
    suspicious_before: bool = False
    suspicious_after: bool = False


@dataclass(frozen=True)
class RankEvidence:
    """What one rank knows of its step, as numbers on the host.

    Attributes:
        local: gradients before the reduction.
        reduced: what the optimizer would consume.
    """

    local: LocalGradients
    reduced: ReducedState
    microbatches: tuple[Microbatch, ...]
    signs: Signs


NOTHING = RankEvidence(LocalGradients(None, (), {}, 0), ReducedState(None, 0, (), 0), (), Signs())
"""The evidence of a rank where it could not be collected."""


def collect(guarded: GuardedOptimizer, limit: float) -> RankEvidence:
    """Read the norms, count elements where that is possible, and decide whether a suspicion holds.

    Args:
        guarded: the optimizer whose step raised the alarm.
        limit: sum of squares above which a norm is suspicious.
    Sync: several host reads; only on an alarm.
    """
    reduced_norm, reduced = _reduced(guarded)
    bad_after = tuple(one for one in reduced if one.pattern != "finite")
    local_norm, local, suspects = _local(guarded, {one.name for one in bad_after})
    microbatches = tuple(Microbatch(i, *seen) for i, seen in enumerate(guarded.step.losses.read()))
    return RankEvidence(
        local=LocalGradients(local_norm, local, by_layer(local), 0, norm_by_layer(guarded)),
        reduced=ReducedState(reduced_norm, len(guarded.step.after.pieces), tuple(reduced), 0),
        microbatches=microbatches,
        signs=Signs(
            bad_before=suspects or any(one.pattern != "finite" for one in local),
            bad_after=bool(bad_after),
            bad_loss=any(one.loss is not None and not math.isfinite(one.loss) for one in microbatches),
            suspicious_before=_is_suspicious(local_norm, limit),
            suspicious_after=_is_suspicious(reduced_norm, limit),
        ),
    )


def kind_of(ranks: Sequence[Signs]) -> Kind:
    """The kind of incident as far as these ranks know: a suspicion counts only where no element is bad anywhere."""
    if any(seen.bad_before for seen in ranks):
        return Kind.GRADIENT_BEFORE_REDUCTION
    if any(seen.bad_after for seen in ranks):
        return Kind.GRADIENT_AFTER_REDUCTION
    if any(seen.bad_loss for seen in ranks):
        return Kind.LOSS
    if any(seen.suspicious_before or seen.suspicious_after for seen in ranks):
        return Kind.NORM_OVERFLOW
    return Kind.DEAD_STEP


def by_layer(parameters: Sequence[BadParameter]) -> dict[str, int]:
    """Number of bad parameters per layer, in the order of the model."""
    return dict(Counter(layer_of(parameter.name) for parameter in parameters))


def norm_by_layer(guarded: GuardedOptimizer) -> dict[str, float | None]:
    """Norm of every layer before the reduction, in the order of the model; empty with one norm per bucket."""
    if not guarded.step.before.per_parameter:
        return {}
    norms: dict[str, list[float]] = defaultdict(list)
    for bucket in guarded.step.before.taken():
        for param, norm in zip(bucket.params, bucket.norms.tolist(), strict=True):
            norms[layer_of(guarded.names.entry(param).name)].append(norm)
    layers = dict.fromkeys(layer_of(entry.name) for entry in guarded.names.entries)
    return {layer: float(f"{_root(norms[layer]):.{NORM_DIGITS}g}") if norms[layer] else None for layer in layers}


def _reduced(guarded: GuardedOptimizer) -> tuple[float | None, list[BadParameter]]:
    norms = guarded.step.after.norms
    if norms is None:
        return None, []
    return _root(norms.tolist()), count_nonfinite(guarded.names, guarded.step.after.pieces)


def _local(guarded: GuardedOptimizer, bad_after: set[str]) -> tuple[float | None, tuple[BadParameter, ...], bool]:
    """What this rank's own gradients were before the reduction.

    Elements are counted after the reduction, where it left them in place. Such a count is used for a parameter only if
    its norm was not finite before the reduction.

    Args:
        bad_after: names of the parameters that are bad after the reduction.
    Returns:
        Norm of the rank; its bad parameters; whether a bucket is bad of which one norm was taken as a whole.
    """
    survivors = [] if guarded.step.before.forced_all_reduce else surviving_local_pieces(guarded.chunks)
    counted = {one.name: one for one in count_nonfinite(guarded.names, survivors)}
    found: list[BadParameter] = []
    norms: list[float] = []
    undivided = False
    for bucket in guarded.step.before.taken():
        values = bucket.norms.tolist()
        norms += values
        entries = [guarded.names.entry(param) for param in bucket.params]
        counts = [counted.pop(entry.name, None) for entry in entries]
        if len(values) == len(entries):
            found += [
                _judge(count or _uncounted(entry), norm, entry.name in bad_after)
                for entry, norm, count in zip(entries, values, counts, strict=True)
                if not math.isfinite(norm)
            ]
        elif not math.isfinite(_root(values)):
            found += filter(None, counts)
            undivided |= math.isnan(values[0]) or any(entry.name in bad_after for entry in entries)
    found += counted.values()
    order = {entry.name: entry.id for entry in guarded.names.entries}
    return (_root(norms) if norms else None), tuple(sorted(found, key=lambda one: order[one.name])), undivided


def _uncounted(entry: ParameterEntry) -> BadParameter:
    """A parameter whose values from before the reduction are gone."""
    return BadParameter(entry.name, entry.local_name, entry.shape, None, "finite", None, None, None, None)


def _judge(parameter: BadParameter, norm: float, is_bad_after: bool) -> BadParameter:
    """Pattern of a parameter from the norm of the whole and the count of what is left of it.

    A NaN norm has a NaN element. An Inf norm has an Inf element or is an overflow of finite ones: sums keep an Inf, so
    where the reduced values are finite and so is what was counted, it was an overflow.
    """
    if math.isnan(norm):
        return replace(parameter, norm=norm, pattern=pattern_of(True, parameter.inf_count))
    if parameter.nan_count or parameter.inf_count:
        return replace(parameter, norm=norm)
    return replace(parameter, norm=norm, pattern="inf" if is_bad_after else "finite")


def _root(norms: Sequence[float]) -> float:
    """Norm of the whole from the norms of its parts; NaN before Inf."""
    return math.nan if any(math.isnan(norm) for norm in norms) else math.hypot(*norms)


def _is_suspicious(norm: float | None, limit: float) -> bool:
    return norm is not None and not norm * norm <= limit
