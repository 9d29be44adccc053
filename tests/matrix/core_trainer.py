"""Script: train a GPT with megatron.core alone, any release from 0.8 on: layout S (one rank) or P (DP2, overlap).

LAYOUT=P torchrun ... core_trainer.py; prints one line with a digest of the weights. `FAULT=1` makes the last rank's
gradient of the first layer's `linear_fc2` NaN in the backward of step 2.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

import megatron_nanguard  # noqa: F401

STEPS, MICROBATCHES, SEQ_LENGTH, VOCAB_SIZE = 3, 2, 8, 32


def options(kind: Any, **wanted: Any) -> Any:
    """Make a configuration with those of the options that this release has."""
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in wanted.items() if name in known})


def build() -> tuple[Any, Any]:
    """A GPT under DDP, and its optimizer."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    model = GPTModel(config, get_gpt_layer_local_spec(), VOCAB_SIZE, SEQ_LENGTH)
    ddp_config = options(
        DistributedDataParallelConfig,
        check_for_nan_in_grad=True,
        overlap_grad_reduce=os.environ["LAYOUT"] == "P",
        bucket_size=2000,
    )
    chunk = DistributedDataParallel(config, ddp_config, model)
    config.no_sync_func = chunk.no_sync
    if hasattr(chunk, "broadcast_params"):
        chunk.broadcast_params()
    return chunk, get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0), [chunk])


def loss_func(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean over the tokens of a micro-batch."""
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def forward_step(data_iterator: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Predict the next number of a count."""
    tokens = next(data_iterator)
    positions = torch.arange(SEQ_LENGTH, device="cuda")[None]
    return model(tokens[:, :-1], positions, None, labels=tokens[:, 1:]), partial(loss_func)


def train_step(chunk: Any, optimizer: Any, step: int) -> None:
    """One step of the training loop."""
    chunk.zero_grad_buffer()
    optimizer.zero_grad()
    count = (torch.arange(SEQ_LENGTH + 1, device="cuda")[None] + dist.get_rank() + step) % VOCAB_SIZE
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter([count] * MICROBATCHES),
        model=[chunk],
        num_microbatches=MICROBATCHES,
        seq_length=SEQ_LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )
    assert optimizer.step()[0]


def main() -> None:
    """Train and print the digest."""
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    chunk, optimizer = build()
    for step in range(STEPS):
        train_step(chunk, optimizer, step)
    digest = hashlib.sha256()
    for param in chunk.parameters():
        digest.update(param.detach().cpu().float().numpy().tobytes())
    print(f"digest {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
