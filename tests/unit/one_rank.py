"""A model of two linear layers under real Megatron on one CPU rank: DDP, optimizer, schedule.

h = first(x), y = second(h), loss = sum(y); no biases. first.weight = 1, 2 / 3, 4, second.weight = 5, 6, so with
x = [1, 1] per micro-batch: d loss / d second.weight = h = [3, 7], d loss / d first.weight = 5, 5 / 6, 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

ONES = torch.ones(1, 2)


class Net(torch.nn.Module):
    """The model, as far as Megatron asks it."""

    model_type = None

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.second = torch.nn.Linear(2, 1, bias=False)
        self.first.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        self.second.weight.data = torch.tensor([[5.0, 6.0]])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y

    def set_input_tensor(self, received: Any) -> None:
        """The first stage receives nothing."""


class Trainer:
    """What a training loop holds.

    Args:
        optimizer_options: of Megatron's ``OptimizerConfig``.
        ddp_options: of its ``DistributedDataParallelConfig``.
    """

    def __init__(self, optimizer_options: dict[str, Any], ddp_options: dict[str, Any]) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.distributed.finalize_model_grads import finalize_model_grads
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer import TransformerConfig

        precision = {name: optimizer_options.get(name, False) for name in ("fp16", "bf16")}
        self.config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, **precision)
        self.config.finalize_model_grads_func = finalize_model_grads
        net = Net(self.config)
        if any(precision.values()):
            net.to(torch.float16 if precision["fp16"] else torch.bfloat16)
        self.ddp = DistributedDataParallel(self.config, DistributedDataParallelConfig(**ddp_options), net)
        self.net = net
        settings = OptimizerConfig(
            **{"lr": 0.1, "optimizer": "sgd", "clip_grad": 0.0, "weight_decay": 0.0, **optimizer_options}
        )
        self.optimizer = get_megatron_optimizer(settings, [self.ddp])
        self.config.grad_scale_func = self.optimizer.scale_loss

    def forward_backward(
        self, inputs: Sequence[Tensor] = (ONES,), loss: Callable[[Tensor], Any] | None = None, **changes: Any
    ) -> Any:
        """One pass of the schedule over fresh gradients."""
        from megatron.core.pipeline_parallel import schedules

        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

        def forward_step(data: Iterator[Tensor], model: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
            dtype = self.net.first.weight.dtype
            return model(next(data).to(dtype)).float(), loss or sum_of

        arguments: dict[str, Any] = {
            "forward_step_func": forward_step,
            "data_iterator": iter(inputs),
            "model": [self.ddp],
            "num_microbatches": len(inputs),
            "seq_length": 2,
            "micro_batch_size": 1,
            "forward_only": False,
        }
        return schedules.forward_backward_no_pipelining(**{**arguments, **changes})

    def step(self) -> tuple[bool, Any]:
        """The optimizer's step: whether it was applied, and the gradient norm."""
        success, norm, _ = self.optimizer.step()
        return success, norm

    def weights(self) -> list[float]:
        """All weights, in order."""
        return [value for weight in self.net.parameters() for value in weight.detach().float().flatten().tolist()]


def sum_of(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss function of two results."""
    return output.sum(), {"loss": output.detach().sum()}


def trainer(*, ddp: dict[str, Any] | None = None, **optimizer_options: Any) -> Trainer:
    """A trainer; fp32, plain DDP and Megatron's own check on unless told otherwise."""
    return Trainer(optimizer_options, {"check_for_nan_in_grad": True, **(ddp or {})})
