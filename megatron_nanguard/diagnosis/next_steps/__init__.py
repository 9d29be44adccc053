"""What to do next about a cause: the cheapest step that separates it from the second likeliest one, or confirms it.

open model.py:7 in f, and find why log gets values from -2.5 to -1 there
the same steps with CUDA_LAUNCH_BLOCKING=1 [...]: clean points to unwritten memory or a race, bad again to [...]
the same steps from the checkpoint before the last: clean if the state went bad after it was saved
"""

from __future__ import annotations

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.history import steps_before
from megatron_nanguard.diagnosis.next_steps.confirmations import CONFIRMATIONS
from megatron_nanguard.diagnosis.next_steps.experiments import EXPERIMENTS
from megatron_nanguard.diagnosis.next_steps.first_look import first_look
from megatron_nanguard.records.causes import Cause, Family, cause_words, family_of
from megatron_nanguard.records.phrase import phrase


def next_step(cause: str, rival: str | None, case: Case) -> str:
    """Name the next step; something that can be read comes before anything that has to be run.

    Args:
        cause: its code.
        rival: the code of the likeliest other cause; None without one.
        case: the incident, which shows what was done already.
    """
    return first_look(cause, case) or cheapest(cause, rival, case)


def cheapest(cause: str, rival: str | None, case: Case) -> str:
    """Name the cheapest experiment that separates two causes, and what each of its outcomes points to.

    Arguments as of `next_step`. Without an experiment that separates them, one that confirms the first.
    """
    if family_of(cause) is Family.HARDWARE and (move := _move_rank(case)):
        return move
    for experiment in EXPERIMENTS if rival else ():
        if experiment.separates(cause, rival or "") and experiment.is_open(case):
            clean, bad = (cause, rival or "") if cause in experiment.clean else (rival or "", cause)
            return experiment.says or phrase(
                "{do}: clean points to {clean}, bad again to {bad}",
                do=_with_value(experiment.do, experiment.option, case),
                clean=cause_words(clean),
                bad=cause_words(bad),
            )
    proposed = [each for code in (cause, Cause.UNDECIDED) for each in CONFIRMATIONS if each.cause == code]
    confirmation = next(each for each in proposed if each.is_open(case))
    do = _with_value(confirmation.do, confirmation.option, case)
    return phrase("{do}: {outcome}", do=do, outcome=confirmation.outcome)


def _move_rank(case: Case) -> str:
    """Propose to move the one rank that was bad in several steps of this run; empty where its call ran elsewhere."""
    incident = case.incident
    was_compared = any(call.peer in ("bad", "finite") for call in incident.arbitrations)
    if len(incident.ranks.bad_before) != 1 or was_compared:
        return ""
    (rank,) = incident.ranks.bad_before
    before = steps_before(rank, case)
    if not before:
        return ""
    steps = [*before, incident.step]
    return phrase(
        "{number} bad steps on rank {rank} ({steps}): move rank {rank} to another device or host; what follows the "
        "device is hardware, what stays with the rank is software or data",
        number=len(steps),
        rank=rank,
        steps=", ".join(map(str, steps)),
    )


def _with_value(do: str, option: str, case: Case) -> str:
    """The flag with the value that its option has now, where that is known."""
    value = case.host_options.get(option)
    return do if value is None else phrase("{do} (now {value})", do=do, value=value)
