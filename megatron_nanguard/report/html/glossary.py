"""The glossary of the page, for a reader who is new to its words."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrase
from megatron_nanguard.report.blocks import Block

ABOUT: Final = phrase("This page is about one training step in which megatron_nanguard found NaN or Inf.")
STOPPED: Final = phrase("Exit code 65 means that the guard stopped the job because of it.")
WENT_ON: Final = phrase(
    "The job was still running when this was written; if it ended later, look at later incidents or the training log."
)
WORDS: Final = (
    (phrase("bad, not finite"), phrase("NaN or Inf.")),
    (
        phrase("origin"),
        phrase(
            "The first call that made a bad value without a bad input tensor, found by tracing back from a bad "
            "gradient. A NaN may have been passed to it as a plain number."
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
            "load: the batch is fetched. reduce: a sum over ranks outside of any micro-batch. finalize: after the "
            "last backward, when the sums of gradients over replicas and tied weights are awaited and used. clip: "
            "the norm."
        ),
    ),
    (
        phrase("plain, traced, probed pass"),
        phrase("The step run again: unchanged; with every operator checked; and once more in more detail."),
    ),
    (
        phrase("synchronous, marker fill"),
        phrase(
            "The step run again: with a wait for the device after every operator; with new memory filled with a "
            "known NaN."
        ),
    ),
    (
        phrase("the suspect call"),
        phrase("The call of the origin, saved with its inputs in bundle/, and run again on its own."),
    ),
    (phrase("autograd.Function"), phrase("A backward that was written by hand in Python.")),
    (phrase("norm"), phrase("Square root of the sum of squares of a gradient.")),
    (
        phrase("loss scale"),
        phrase("In fp16 the loss, and so every gradient before the optimizer, is multiplied by it."),
    ),
    (
        phrase("likely, possible"),
        phrase("How sure the rules are, from 0 to 1, given the evidence listed; not a measured frequency."),
    ),
    (phrase("+  -  ?"), phrase("Evidence for a cause, evidence against it, and what was not tested.")),
    (phrase("exit code 65"), phrase("The guard ended the run. Any other code is that of the training script.")),
)


def about(incident: Incident) -> str:
    """Say in a sentence or two what the page is, and what happened to the job."""
    became = {"abort": STOPPED, "skip": WENT_ON, "continue": WENT_ON}.get(incident.policy.action, "")
    return joined(FOLLOWED, (ABOUT, became))


def glossary() -> Block:
    """Make the table of the words of the page and their meanings, in the order in which they appear on it."""
    return Block(phrase("Words on this page"), rows=WORDS)
