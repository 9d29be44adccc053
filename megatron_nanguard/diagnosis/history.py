"""What earlier incidents tell: some keep to a device, some to the data, some to nothing.

A rank moves to another device when a job starts again. A step that is met in another attempt is the same data again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.causes import Family, family_of
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.machine.device import RankDevice
from megatron_nanguard.records.phrase import LISTED, TOGETHER, Phrase, joined, name_ranks, phrase

FEW: Final = 8
"""More suspect ranks than these are a host's worth of devices: that two such sets overlap tells nothing."""


def bears_on(earlier: Incident, incident: Incident) -> bool:
    """Whether an earlier incident tells something of this one.

    One that its values explain tells nothing of a step with other data. The same step in another attempt always does.
    """
    is_same_step = earlier.run_id != incident.run_id and earlier.step == incident.step
    return is_same_step or not earlier.causes or family_of(earlier.causes[0].cause) is not Family.VALUES


def with_other_data(case: Case) -> list[Incident]:
    """The earlier incidents without those of the same step in another attempt."""
    return [earlier for earlier in case.earlier if not _is_same_data(earlier, case)]


def same_step_elsewhere(case: Case) -> list[Incident]:
    """The attempts in which the same step was bad, and on no device that is suspect now."""
    return [earlier for earlier in case.earlier if _is_same_data(earlier, case) and _is_elsewhere(earlier, case)]


def recurrences(case: Case) -> list[Incident]:
    """Earlier incidents with other data on a rank, device or host that is suspect now."""
    return [earlier for earlier in with_other_data(case) if _shared_place(earlier, case)]


def steps_before(rank: int, case: Case) -> list[int]:
    """The earlier steps of this run in which a rank was suspect."""
    return [earlier.step for earlier in case.earlier if _is_of_this_run(earlier, case) and rank in _ranks(earlier)]


def num_places(case: Case) -> int:
    """On how many different devices, or sets of ranks, the earlier incidents with other data were."""
    return len({frozenset(_names(_devices(each), case)) or _ranks(each) for each in with_other_data(case)})


def weigh_places(case: Case, scales: Scales, *, is_lasting: bool) -> None:
    """Weigh what keeps to a device, or does not, for a cause in hardware.

    Args:
        case: the incident, and those before it.
        scales: of the cause.
        is_lasting: the cause is a lasting fault, for which a recurrence speaks. Against a passing fault it speaks a
            little: a device may fail now and then.
    """
    recurring = recurrences(case)
    for words in _shared_words(recurring, case):
        if is_lasting:
            scales.speaks_for(STRONG if len(recurring) > 1 else HINT, words, "history")
        else:
            scales.speaks_against(SLIGHT, words, "history")
    for earlier in same_step_elsewhere(case):
        form = phrase("{when} was bad too, on other devices ({ranks} there)")
        scales.speaks_against(STRONG, _fact(form, earlier, case), "same step")
    for earlier in with_other_data(case):
        if _is_elsewhere(earlier, case):
            form = phrase("{when} was bad on {ranks}, on other devices")
            scales.speaks_against(HINT, _fact(form, earlier, case), "elsewhere")


def _fact(form: Phrase, earlier: Incident, case: Case) -> Phrase:
    return form.format(when=_when(earlier, case), ranks=name_ranks(_ranks(earlier)))


def _ranks(earlier: Incident) -> tuple[int, ...]:
    """The ranks with an origin; those that were bad before the reduction where no origin is known."""
    return tuple(sorted({origin.rank for origin in earlier.origin})) or earlier.ranks.bad_before


def _devices(earlier: Incident) -> tuple[RankDevice, ...]:
    """The devices of these ranks, as far as they are known."""
    ranks = _ranks(earlier)
    return tuple(device for device in earlier.accused_devices if device.rank in ranks)


def _suspect_ranks(case: Case) -> frozenset[int]:
    return case.incident.suspect_ranks | {call.rank for call in case.incident.arbitrations}


def _suspect_devices(case: Case) -> tuple[RankDevice, ...]:
    ranks = _suspect_ranks(case)
    return tuple(device for device in case.incident.accused_devices if device.rank in ranks)


def _is_of_this_run(earlier: Incident, case: Case) -> bool:
    return earlier.run_id == case.incident.run_id


def _is_same_data(earlier: Incident, case: Case) -> bool:
    return not _is_of_this_run(earlier, case) and earlier.step == case.incident.step


def _is_elsewhere(earlier: Incident, case: Case) -> bool:
    """Whether it is known to have been on none of the devices that are suspect now."""
    if _is_of_this_run(earlier, case):
        ranks = _ranks(earlier)
        return bool(ranks) and not _suspect_ranks(case) & set(ranks)
    now, then = _names(_suspect_devices(case), case), _names(_devices(earlier), case)
    return bool(now and then) and not now & then


def _names(devices: Iterable[RankDevice], case: Case) -> set[str]:
    """Devices by host and number. A host with one device is named alone, unless all ranks share that host."""
    return {
        ", ".join(filter(None, (device.host, device.device)))
        for device in devices
        if device.device or case.incident.num_hosts > 1
    }


class _SharedPlace(NamedTuple):
    """The rank, device or host that an earlier incident shares with this one.

    Attributes:
        form: a sentence on it that lacks the steps.
        name: of the rank, device or host; empty where the sentence does not name it.
    """

    form: Phrase
    name: str = ""

    def words(self, steps: Sequence[str]) -> Phrase:
        *others, last = steps
        when = joined(TOGETHER, (joined(LISTED, others), last))
        return self.form.format(when=when, rank=self.name, device=self.name, host=self.name)


def _shared_words(recurring: Sequence[Incident], case: Case) -> Iterator[Phrase]:
    """One sentence for all steps that share the same place."""
    steps: dict[_SharedPlace, list[str]] = {}
    for earlier in recurring:
        if shared := _shared_place(earlier, case):
            steps.setdefault(shared, []).append(_when(earlier, case))
    return (shared.words(whens) for shared, whens in steps.items())


def _shared_place(earlier: Incident, case: Case) -> _SharedPlace | None:
    """None where the two incidents share nothing, or have too many ranks to tell anything."""
    ranks, then = _suspect_ranks(case), _ranks(earlier)
    if max(len(ranks), len(then)) > FEW:
        return None
    if _is_of_this_run(earlier, case):
        return _shared_rank(sorted(ranks & set(then)), earlier)
    now = _suspect_devices(case)
    if devices := _names(now, case) & _names(_devices(earlier), case):
        return _SharedPlace(phrase("the same device, {device}, was suspect in {when} already"), min(devices))
    hosts = {device.host for device in now} & {device.host for device in _devices(earlier)}
    if hosts and case.incident.num_hosts > 1:
        return _SharedPlace(phrase("the same host, {host}, was suspect in {when} already"), min(hosts))
    return None


def _shared_rank(shared: Sequence[int], earlier: Incident) -> _SharedPlace | None:
    """Without an origin the rank is only known to have been bad; another one may have been the first."""
    if not shared:
        return None
    if earlier.origin:
        return _SharedPlace(phrase("the same rank was the origin in {when} already"))
    if len(_ranks(earlier)) == 1:
        form = phrase("{rank} was the only bad rank in {when} already")
    else:
        form = phrase("{rank} was among the bad ranks in {when} already")
    return _SharedPlace(form, name_ranks(shared[:1]))


def _when(earlier: Incident, case: Case) -> str:
    if _is_of_this_run(earlier, case):
        return phrase("step {step}", step=earlier.step)
    return phrase("step {step} of attempt {attempt}", step=earlier.step, attempt=earlier.run_id)
