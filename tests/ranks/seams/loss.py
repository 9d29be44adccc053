"""Loss functions as they are written by mistake.

all_masked     the mean over tokens that count, as one writes it first
clipped_ratio  a policy ratio that overflows where the mask is 0, and is clipped: its gradient is 0 times Inf
nan_metric     a metric that is NaN, and that nothing depends on
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.cpurun import pretrain_gpt
from tests.ranks.seams.when import is_due, is_due_here, worse

_trained_loss = pretrain_gpt.loss_func


def install() -> None:
    """Take the place of the script's own loss function."""
    pretrain_gpt.loss_func = loss_func


def loss_func(loss_mask: Tensor, output: Tensor) -> Any:
    """The one that is due."""
    if is_due("all_masked"):
        return unguarded_mean(loss_mask, output)
    if is_due_here("clipped_ratio"):
        return clipped_ratio(loss_mask, output)
    if is_due("nan_metric"):
        return with_metric(loss_mask, output)
    return _trained_loss(loss_mask, output)


def unguarded_mean(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    mask = loss_mask.view(-1)
    num_tokens = mask.sum()
    mean = torch.sum(output.view(-1) * mask) / num_tokens
    report = torch.stack([mean.detach() * num_tokens, num_tokens])
    return mean * num_tokens, num_tokens.detach().to(torch.int), {"lm loss": report}


def clipped_ratio(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    losses, mask = output.view(-1), loss_mask.view(-1).clone()
    mask[::8] = 0
    log_ratio = losses - losses.detach() + worse(200, 2) * (1 - mask)
    clipped = torch.min(torch.exp(log_ratio), torch.full_like(log_ratio, 1.2))
    loss, num_tokens = torch.sum(clipped * losses * mask), mask.sum()
    report = torch.stack([loss.detach(), num_tokens])
    return loss, num_tokens.detach().to(torch.int), {"lm loss": report}


def with_metric(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    loss, num_tokens, report = _trained_loss(loss_mask, output)
    return loss, num_tokens, {**report, "accuracy": torch.stack([torch.tensor(math.nan), num_tokens.float()])}
