"""References of the cross entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor


def cross_entropy(
    *,
    vocab_parallel_logits: Tensor | None = None,
    target: Tensor | None = None,
    label_smoothing: float = 0.0,
    logits: Tensor | None = None,
    labels: Tensor | None = None,
    smoothing: float = 0.0,
    inp: Tensor | None = None,
    _input: Tensor | None = None,
    ignore_idx: int | None = None,
    reduce_loss: bool = False,
    **_: object,
) -> Tensor:
    """log(sum(exp(logits))) minus the logit of the target, per token; names of Megatron, Apex, Transformer Engine.

    Raises:
        NotImplementedError: labels are smoothed, or a target lies outside of this rank's part of the vocabulary.
    """
    scores = next((one for one in (vocab_parallel_logits, logits, inp, _input) if one is not None), None)
    if scores is None:
        raise TypeError("no argument holds the logits")
    wanted = labels if target is None else target
    assert wanted is not None
    if label_smoothing or smoothing:
        raise NotImplementedError("no reference for smoothed labels")
    is_ignored = wanted == (-1 if ignore_idx is None else ignore_idx)
    wanted = wanted.long().masked_fill(is_ignored, 0)
    if int(wanted.max()) >= scores.shape[-1]:
        raise NotImplementedError("no reference for a vocabulary that is split over ranks")
    shifted = scores - scores.amax(-1, keepdim=True).detach()
    losses = shifted.exp().sum(-1).log() - shifted.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
    losses = losses.masked_fill(is_ignored, 0.0)
    return losses.sum() / (~is_ignored).sum() if reduce_loss else losses


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "_VocabParallelCrossEntropy": cross_entropy,
    "SoftmaxCrossEntropyLoss": cross_entropy,
    "CrossEntropyFunction": cross_entropy,
}
