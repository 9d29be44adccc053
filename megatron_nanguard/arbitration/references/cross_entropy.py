"""Cross entropy of each token over a vocabulary that is not split."""

from __future__ import annotations

from torch import Tensor


def reference(
    *,
    vocab_parallel_logits: Tensor | None = None,
    target: Tensor | None = None,
    label_smoothing: float = 0.0,
    logits: Tensor | None = None,
    labels: Tensor | None = None,
    smoothing: float = 0.0,
    **_: object,
) -> Tensor:
    """log(sum(exp(logits))) minus the logit of the target, per token; Megatron's names, then Apex's.

    Raises:
        NotImplementedError: labels are smoothed, or a target lies outside of this rank's part of the vocabulary.
    """
    scores, wanted = logits if target is None else vocab_parallel_logits, labels if target is None else target
    assert scores is not None and wanted is not None
    if label_smoothing or smoothing:
        raise NotImplementedError("no reference for smoothed labels")
    if int(wanted.max()) >= scores.shape[-1]:
        raise NotImplementedError("no reference for a vocabulary that is split over ranks")
    shifted = scores - scores.amax(-1, keepdim=True).detach()
    return shifted.exp().sum(-1).log() - shifted.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
