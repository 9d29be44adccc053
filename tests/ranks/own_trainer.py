"""Script: a trainer on megatron.core alone, two data-parallel replicas, no arguments of Megatron's.

OWN_GROUPS=1 hands its process groups to everything by itself and never calls `initialize_model_parallel`.
"""

from __future__ import annotations

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
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

STEPS, MICROBATCHES, SEQ_LENGTH, VOCAB_SIZE = 2, 2, 8, 32


def own_groups() -> ProcessGroupCollection:
    """Everything alone but for data parallelism, which is the world."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    single = ("tp", "pp", "mp", "cp", "tp_cp", "ep", "expt_tp", "tp_ep", "tp_ep_pp", "embd", "pos_embd")
    whole = ("dp", "dp_cp", "expt_dp", "intra_dp_cp", "intra_expt_dp", "tp_dp_cp")
    return ProcessGroupCollection(**dict.fromkeys(single, alone), **dict.fromkeys(whole, dist.group.WORLD))


def build(groups: ProcessGroupCollection | None, num_layers: int = 1) -> tuple[Any, Any]:
    """A GPT under DDP, and its optimizer."""
    config = TransformerConfig(
        num_layers=num_layers,
        hidden_size=16,
        num_attention_heads=2,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    spec = get_gpt_layer_local_spec()
    model = GPTModel(config, spec, VOCAB_SIZE, SEQ_LENGTH, pg_collection=groups)
    ddp_config = DistributedDataParallelConfig(check_for_nan_in_grad=True)
    chunk = DistributedDataParallel(config, ddp_config, model, pg_collection=groups)
    chunk.broadcast_params()
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3),
        [chunk],
        use_gloo_process_groups=groups is None,
        pg_collection=groups,
    )
    return chunk, optimizer


def loss_func(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean over the tokens of a micro-batch."""
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def forward_step(data_iterator: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Predict the next number of a count."""
    tokens = next(data_iterator)
    positions = torch.arange(SEQ_LENGTH, device="cuda")[None]
    return model(tokens[:, :-1], positions, None, labels=tokens[:, 1:]), partial(loss_func)


def forward_backward(chunk: Any, optimizer: Any, groups: ProcessGroupCollection | None = None) -> None:
    """Everything of a step but the optimizer's part."""
    chunk.zero_grad_buffer()
    optimizer.zero_grad()
    count = torch.arange(SEQ_LENGTH + 1, device="cuda")[None] + dist.get_rank()
    get_forward_backward_func(pp_size=1, vp_size=None)(
        forward_step_func=forward_step,
        data_iterator=iter([count] * MICROBATCHES),
        model=[chunk],
        num_microbatches=MICROBATCHES,
        seq_length=SEQ_LENGTH,
        micro_batch_size=1,
        pg_collection=groups,
    )


def main() -> None:
    """Train, and say so."""
    dist.init_process_group("nccl")
    groups = own_groups() if os.environ.get("OWN_GROUPS") else None
    if groups is None:
        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(1)
    else:
        parallel_state._set_global_memory_buffer()  # attention asks for it; else initialize_model_parallel makes it
        model_parallel_cuda_manual_seed(1, tp_rank=0, ep_rank=0, etp_rank=0)
    chunk, optimizer = build(groups)
    for _ in range(STEPS):
        forward_backward(chunk, optimizer, groups)
        assert optimizer.step()[0]
    print("trained")


if __name__ == "__main__":
    main()
