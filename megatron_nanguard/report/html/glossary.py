"""The glossary of the page, for a reader who is new to its words."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrase
from megatron_nanguard.report.blocks import Block

TITLE: Final = phrase("Words on this page")
ABOUT: Final = phrase("This page tells of one training step in which megatron_nanguard met NaN or Inf.")
STOPPED: Final = phrase("Exit code 65 means that the guard stopped the job because of it.")
WENT_ON: Final = phrase(
    "When this was written the job was going on; if it ended later, look at later incidents or the training log."
)
WORDS: Final = (
    (phrase("bad, not finite"), phrase("NaN or Inf.")),
    (
        phrase("origin"),
        phrase(
            "The first call that made something bad although no bad tensor went in, on a way back from a bad gradient; "
            "a plain number that is NaN may have been passed to it."
        ),
    ),
    (
        phrase("reduction"),
        phrase(
            "The sum of gradients over data-parallel replicas. What is bad before it belongs to one replica; what is "
            "bad after it only was infected."
        ),
    ),
    (phrase("micro-batch"), phrase("One forward and backward inside a step, counted from 0.")),
    (
        phrase("tp, pp, dp, cp, ep"),
        phrase("Place of a rank on the tensor-, pipeline-, data-, context- and expert-parallel axis, from 0."),
    ),
    (phrase("replica"), phrase("One copy of the model: all ranks with the same place on the data-parallel axis.")),
    (
        phrase("phases"),
        phrase(
            "load: the batch is fetched. reduce: a sum over ranks outside of any micro-batch. finalize: after the last "
            "backward, where sums of gradients over replicas and tied weights are waited for and used. clip: the norm."
        ),
    ),
    (
        phrase("plain, traced, probed pass"),
        phrase("The step again: as it was; with every operator read along; and once more, closer."),
    ),
    (
        phrase("synchronous, marker fill"),
        phrase("The step again: waiting after every operator; with fresh memory filled with a known NaN."),
    ),
    (
        phrase("the accused call"),
        phrase("The call of the origin, saved with its inputs in bundle/, and run again on its own."),
    ),
    (phrase("autograd.Function"), phrase("A backward that somebody wrote by hand, in Python.")),
    (phrase("norm"), phrase("Square root of the sum of squares of a gradient.")),
    (
        phrase("loss scale"),
        phrase("In fp16 the loss, and so every gradient before the optimizer, is multiplied by it."),
    ),
    (
        phrase("likely, possible"),
        phrase("How sure the rules are, between 0 and 1, from the evidence listed; no measured frequency."),
    ),
    (phrase("+  -  ?"), phrase("Evidence for a cause, evidence against it, and what was not tested.")),
    (phrase("exit code 65"), phrase("The guard ended the run. Any other code is that of the training script.")),
)


def about(incident: Incident) -> str:
    """Say in a sentence or two what the page is, and what happened to the job."""
    became = {"abort": STOPPED, "skip": WENT_ON, "continue": WENT_ON}.get(incident.policy.action, "")
    return joined(FOLLOWED, (ABOUT, became))


def glossary() -> Block:
    """The words of the page with their meanings, in the order in which a reader finds them."""
    return Block(TITLE, rows=WORDS)
