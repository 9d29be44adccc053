"""What earlier incidents tell: some keep to a device, some to the data, some wander.

A rank moves when a job starts again, a device stays. A step that is met in another attempt is the same data again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis import health
from megatron_nanguard.diagnosis.evidence import EarlierIncident, Evidence
from megatron_nanguard.diagnosis.weighing import HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.device import RankDevice
from megatron_nanguard.records.phrase import LISTED, TOGETHER, Phrase, joined, phrase
from megatron_nanguard.records.rank_words import name_ranks

FEW: Final = 8
"""More accused ranks than these are a host's worth of devices: that two such sets meet tells nothing."""

SAME_ORIGIN: Final = phrase("the same rank was the origin in {when} already")
ONLY_BAD: Final = phrase("{rank} was the only bad rank in {when} already")
ONE_OF_THE_BAD: Final = phrase("{rank} was among the bad ranks in {when} already")
SAME_DEVICE: Final = phrase("the same device, {device}, was accused in {when} already")
SAME_HOST: Final = phrase("the same host, {host}, was accused in {when} already")


def with_other_data(evidence: Evidence) -> Iterator[EarlierIncident]:
    """The earlier incidents but for those of the same step in another attempt."""
    return (earlier for earlier in evidence.earlier if not _is_same_data(earlier, evidence))


def again_on_other_devices(evidence: Evidence) -> Iterator[EarlierIncident]:
    """Attempts in which the same step was bad, and on no device that is accused now."""
    for earlier in evidence.earlier:
        if _is_same_data(earlier, evidence) and _is_elsewhere(earlier, evidence):
            yield earlier


def recurrences(evidence: Evidence) -> list[EarlierIncident]:
    """Earlier incidents with other data on a device, or host, that is accused now."""
    return [earlier for earlier in with_other_data(evidence) if _shared(earlier, evidence)]


def steps_before(rank: int, evidence: Evidence) -> list[int]:
    """The earlier steps of this run in which a rank was accused."""
    return [earlier.step for earlier in evidence.earlier if not earlier.attempt and rank in earlier.ranks]


def weigh_places(evidence: Evidence, scales: Scales, *, is_lasting: bool) -> None:
    """Lay what keeps to a device, or does not, into the scales of a cause in hardware.

    Args:
        evidence: the incident, and those before it.
        scales: of the cause.
        is_lasting: what happens again speaks for the cause; it speaks against one that happens once, though little: a
            device may fail now and then.
    """
    recurring = recurrences(evidence)
    for words in _told(recurring, evidence):
        if is_lasting:
            scales.speaks_for(STRONG if len(recurring) > 1 else HINT, words, "history")
        else:
            scales.speaks_against(SLIGHT, words, "history")
    for earlier in again_on_other_devices(evidence):
        told = phrase(
            "{when} was bad too, on other devices ({ranks} there)",
            when=_when(earlier),
            ranks=name_ranks(earlier.ranks),
        )
        scales.speaks_against(STRONG, told, "same step")
    for earlier in with_other_data(evidence):
        if _is_elsewhere(earlier, evidence):
            told = phrase(
                "{when} was bad on {ranks}, on other devices", when=_when(earlier), ranks=name_ranks(earlier.ranks)
            )
            scales.speaks_against(HINT, told, "elsewhere")


def num_places(evidence: Evidence) -> int:
    """In how many different places earlier incidents were."""
    return len({frozenset(_names(each.devices, evidence)) or each.ranks for each in with_other_data(evidence)})


def _accused(evidence: Evidence) -> frozenset[int]:
    return health.accused(evidence) | {arbitration.rank for arbitration in evidence.arbitrations}


def _is_same_data(earlier: EarlierIncident, evidence: Evidence) -> bool:
    return bool(earlier.attempt) and earlier.step == evidence.step


class _Shared(NamedTuple):
    """What an earlier incident has in common with this one.

    Attributes:
        form: a sentence on it.
        name: of the rank, device or host.
    """

    form: Phrase
    name: str = ""

    def words(self, whens: Sequence[str]) -> Phrase:
        *others, last = whens
        when = joined(TOGETHER, (joined(LISTED, others), last))
        return self.form.format(when=when, rank=self.name, device=self.name, host=self.name)


def _told(recurring: Sequence[EarlierIncident], evidence: Evidence) -> Iterator[Phrase]:
    """Steps that have the same in common are told together."""
    whens: dict[_Shared, list[str]] = {}
    for earlier in recurring:
        if shared := _shared(earlier, evidence):
            whens.setdefault(shared, []).append(_when(earlier))
    yield from (shared.words(steps) for shared, steps in whens.items())


def _shared(earlier: EarlierIncident, evidence: Evidence) -> _Shared | None:
    """None where nothing is, or nothing that tells."""
    ranks = _accused(evidence)
    if max(len(ranks), len(earlier.ranks)) > FEW:
        return None
    if not earlier.attempt:
        return _same_rank(sorted(ranks & set(earlier.ranks)), earlier)
    now = [device for device in evidence.devices if device.rank in ranks]
    if devices := _names(now, evidence) & _names(earlier.devices, evidence):
        return _Shared(SAME_DEVICE, min(devices))
    hosts = {device.host for device in now} & {device.host for device in earlier.devices}
    return _Shared(SAME_HOST, min(hosts)) if hosts and evidence.num_hosts > 1 else None


def _same_rank(shared: Sequence[int], earlier: EarlierIncident) -> _Shared | None:
    """Without an operator no origin is known: the rank was bad, be it the first or not."""
    if not shared:
        return None
    if earlier.operator:
        return _Shared(SAME_ORIGIN)
    return _Shared(ONLY_BAD if len(earlier.ranks) == 1 else ONE_OF_THE_BAD, name_ranks(shared[:1]))


def _is_elsewhere(earlier: EarlierIncident, evidence: Evidence) -> bool:
    """Whether it is known to have been on none of the devices that are accused now."""
    ranks = _accused(evidence)
    if not earlier.attempt:
        return bool(earlier.ranks) and not ranks & set(earlier.ranks)
    now = _names([device for device in evidence.devices if device.rank in ranks], evidence)
    then = _names(earlier.devices, evidence)
    return bool(now and then) and not now & then


def _names(devices: Collection[RankDevice], evidence: Evidence) -> set[str]:
    """Devices by host and number; a host with one device stands for it, unless all ranks share that host."""
    return {
        ", ".join(filter(None, (device.host, device.device)))
        for device in devices
        if device.device or evidence.num_hosts > 1
    }


def _when(earlier: EarlierIncident) -> str:
    if not earlier.attempt:
        return phrase("step {step}", step=earlier.step)
    return phrase("step {step} of attempt {attempt}", step=earlier.step, attempt=earlier.attempt)
