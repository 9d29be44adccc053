"""Merge many post-mortems into one incident, in one pass; no post-mortem is kept, only what the incident needs.

Step 3: gradients of ranks 0, 1, 4, 5 (data-parallel replica 0: all TP, all PP) were not finite before the
data-parallel reduction. Ranks 2, 3, 6, 7 were infected by communication alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.merging.hardware import DeviceMerger, HealthMerger
from megatron_nanguard.postmortem.merging.infection import trace_infection
from megatron_nanguard.postmortem.merging.sentences import ReplayMerger, summarize
from megatron_nanguard.postmortem.merging.values import LossMerger, ParameterMerger
from megatron_nanguard.records.coordinates import Coordinates, RankGroup
from megatron_nanguard.records.incident import BatchSpot, Incident, PolicyOutcome
from megatron_nanguard.records.phrase import Phrasing, phrase, phrases_of
from megatron_nanguard.records.postmortem import Kind, Postmortem, RankSets
from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.records.suspect_call import Arbitration

UNKNOWN_OUTCOME = phrase("not known: the run ended before the files of its ranks were merged")

LISTED_FINDINGS = 64
"""Length of the lists that have one entry per rank or finding; the files of the ranks have them in full."""


@dataclass(frozen=True)
class ExchangedSets:
    """The sets of ranks that all ranks agreed on in the exchange; every post-mortem written after it has them too.

    Attributes:
        ranks: all ranks, grouped by what happened to them.
        groups: the ranks that were bad before the reduction, as products of parallel axes.
        infected_groups: the infected ranks in the same form.
    """

    ranks: RankSets
    groups: tuple[RankGroup, ...]
    infected_groups: tuple[RankGroup, ...]


def merge(
    postmortems: Iterable[Postmortem],
    *,
    exchanged: ExchangedSets | None,
    policy: PolicyOutcome | None,
    files: Sequence[str] = (),
) -> Incident:
    """Merge the post-mortems of one incident.

    Args:
        postmortems: one per rank, in any order; iterated once.
        exchanged: the rank sets of the exchange; None to take them from the post-mortems.
        policy: what was done after the incident; None if the run ended before this was known.
        files: the files of the ranks, relative to the directory of the incident.
    Raises:
        PostmortemError: there is no post-mortem.
    """
    merger = _Merger()
    for postmortem in postmortems:
        merger.add(postmortem)
    return merger.incident(exchanged, policy, files)


class _Merger:
    """Collects what the incident needs, rank by rank."""

    def __init__(self) -> None:
        self._first: Postmortem | None = None
        self._places: dict[int, Coordinates] = {}
        self._kinds: set[Kind] = set()
        self._sets: dict[str, list[int]] = {"bad_before": [], "bad_after_only": [], "clean": []}
        self._exchanged: ExchangedSets | None = None
        self._parameters = ParameterMerger()
        self._losses = LossMerger()
        self._devices = DeviceMerger()
        self._notes: dict[str, list[int]] = {}
        self._phrases: dict[str, Phrasing] = {}
        self._scalars: dict[str, float] = {}
        self._audited = True
        self._audit: list[AuditFinding] = []
        self._changed: list[BatchSpot] = []
        self._zero_tokens: list[BatchSpot] = []
        self._own_faults: list[int] = []
        self._arbitrations: list[Arbitration] = []
        self._replay = ReplayMerger()
        self._health = HealthMerger()

    def add(self, postmortem: Postmortem) -> None:
        rank, set_name = postmortem.coordinates.rank, _set_by_flags(postmortem)
        if self._first is None:
            self._first = postmortem
        self._places[rank] = postmortem.coordinates
        self._kinds.add(postmortem.kind)
        self._sets[set_name].append(rank)
        if self._exchanged is None and postmortem.ranks is not None:
            self._exchanged = ExchangedSets(postmortem.ranks, postmortem.groups, postmortem.infected_groups)
        self._parameters.add(postmortem)
        self._losses.add(rank, postmortem.microbatches)
        self._devices.add(postmortem)
        self._arbitrations += postmortem.arbitrations
        self._health.add(postmortem, set_name)
        self._replay.add(rank, postmortem.replay)
        self._audited &= postmortem.audited
        self._phrases |= postmortem.phrases
        self._audit += postmortem.audit
        self._changed += [BatchSpot(rank, index) for index in postmortem.changed_after_fetch]
        self._zero_tokens += [BatchSpot(rank, each.index) for each in postmortem.microbatches if each.num_tokens == 0]
        if postmortem.flags.own_fault:
            self._own_faults.append(rank)
        for note in postmortem.notes:
            self._notes.setdefault(note, []).append(rank)
        for name in ("loss_scale", "grad_norm", "clip_coefficient"):
            value = getattr(postmortem, name)
            if value is not None:
                self._scalars.setdefault(name, value)

    def incident(self, exchanged: ExchangedSets | None, policy: PolicyOutcome | None, files: Sequence[str]) -> Incident:
        first = self._first
        if first is None:
            raise PostmortemError("no rank's post-mortem could be read")
        exchanged = exchanged or self._exchanged
        expected = exchanged.ranks.everyone if exchanged else range(first.sizes.world)
        exchanged = exchanged or self._sets_by_flags()
        kind = min(self._kinds, key=list(Kind).index)
        infected, infection_notes = trace_infection(exchanged.ranks, self._places, first.sizes)
        parameters, left_out, parameter_notes = self._parameters.merged(first.sizes)
        merged = Incident(
            run_id=first.run_id,
            step=first.step,
            kind=kind,
            summary=summarize(first.step, kind, exchanged.ranks, exchanged.groups),
            ranks=exchanged.ranks,
            sizes=first.sizes,
            groups=exchanged.groups,
            infected_groups=exchanged.infected_groups,
            infected=infected,
            replay=self._replay.merged(),
            audited=self._audited,
            audit=tuple(self._audit[:LISTED_FINDINGS]),
            changed_after_fetch=tuple(self._changed[:LISTED_FINDINGS]),
            zero_tokens=tuple(self._zero_tokens[:LISTED_FINDINGS]),
            arbitrations=tuple(self._arbitrations[:LISTED_FINDINGS]),
            health=self._health.merged(),
            own_faults=tuple(self._own_faults[:LISTED_FINDINGS]),
            parameters=parameters,
            parameters_truncated=left_out,
            losses=self._losses.merged(),
            loss_scale=self._scalars.get("loss_scale"),
            scaler=first.scaler,
            grad_norm=self._scalars.get("grad_norm"),
            clip_coefficient=self._scalars.get("clip_coefficient"),
            policy=policy or PolicyOutcome(first.policy, "unknown", None, UNKNOWN_OUTCOME),
            devices=self._devices.counted(),
            num_hosts=self._devices.num_hosts,
            accused_devices=self._devices.of_failing_ranks(exchanged.ranks),
            files=tuple(files),
            missing_ranks=tuple(sorted(set(expected) - self._places.keys())),
            versions=first.versions,
            notes=(*_counted(self._notes), *infection_notes, *parameter_notes),
        )
        return replace(merged, phrases=self._phrases | phrases_of(merged))

    def _sets_by_flags(self) -> ExchangedSets:
        """Make the rank sets from the flags of each rank; used if no rank got past the exchange."""
        sets = {name: tuple(sorted(ranks)) for name, ranks in self._sets.items()}
        return ExchangedSets(RankSets(**sets), (), ())


def _set_by_flags(postmortem: Postmortem) -> str:
    """Name the field of `RankSets` that a rank belongs to by its own flags."""
    flags = postmortem.flags
    if flags.local or flags.loss:
        return "bad_before"
    return "bad_after_only" if flags.reduced else "clean"


def _counted(notes: Mapping[str, list[int]]) -> tuple[str, ...]:
    """Write each note once: with its rank if one rank has it, else with the number of ranks."""
    return tuple(
        phrase("rank {rank}: {note}", rank=ranks[0], note=note)
        if len(ranks) == 1
        else phrase("{number} ranks: {note}", number=len(ranks), note=note)
        for note, ranks in notes.items()
    )
