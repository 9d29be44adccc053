"""Pretrain a GPT with Megatron: one script, on GPUs under torchrun or on CPU ranks.

    torchrun --nproc-per-node 8 pretrain_gpt.py ARGS...
    nanguard cpu-run --nproc 8 pretrain_gpt.py ARGS...

It takes every argument of Megatron's own pretrain scripts. Data: `--data-path PREFIX` (tokenized PREFIX.bin and
PREFIX.idx) or `--mock-data`: a walk over the vocabulary that depends on the sample's number alone, so that every
parallel layout sees the same global batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.enums import ModelType
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.transformer.multi_token_prediction import mtp_on_this_rank
from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_cp_rank, get_batch_on_this_tp_rank
from megatron.training import get_args, pretrain, print_rank_0
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import core_transformer_config_from_args, parse_and_validate_args
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage
from torch import Tensor
from torch.utils.data import Dataset

KEYS = ("tokens", "position_ids", "attention_mask", "labels", "loss_mask")
Batch = dict[str, Any]


# Data ---------------------------------------------------------------------------------------------------------------


class WalkDataset(Dataset[Batch]):
    """Mock data: sample i is a walk over the vocabulary with steps of 0, 1 or 2, drawn from (split, i)."""

    def __init__(self, num_samples: int, seq_length: int, vocab_size: int, split: int) -> None:
        self.num_samples = num_samples
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.split = split

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed(self.split * 1_000_003 + int(index))
        steps = torch.randint(0, 3, (self.seq_length + 1,), generator=generator)
        start = torch.randint(0, self.vocab_size, (1,), generator=generator)
        walk = (start + torch.cumsum(steps, 0)) % self.vocab_size
        return {
            "tokens": walk[:-1].clone(),
            "labels": walk[1:].clone(),
            "loss_mask": torch.ones(self.seq_length),
            "position_ids": torch.arange(self.seq_length),
        }


def is_data_needed(vp_stage: int | None) -> bool:
    """Whether this chunk of the model takes tokens or labels."""
    config = core_transformer_config_from_args(get_args())
    return bool(
        is_first_or_last_pipeline_stage(vp_stage)
        or mtp_on_this_rank(
            layout=config.pipeline_model_parallel_layout,
            mtp_num_layers=config.mtp_num_layers,
            ignore_virtual=False,
            vp_stage=vp_stage,
        )
    )


def gpt_dataset_config() -> GPTDatasetConfig:
    """Megatron's indexed data set, as the arguments describe it."""
    args = get_args()
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    return GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        path_to_cache=args.data_cache_path,
        mmap_bin_files=args.mmap_bin_files,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=has_attention_mask(),
    )


def datasets_provider(num_samples: Sequence[int | None], vp_stage: int | None = None) -> tuple[Any, Any, Any]:
    """Training, validation and test data, on the ranks that read them: TP rank 0 where data is needed."""
    args = get_args()

    def is_read_here() -> bool:
        return mpu.get_tensor_model_parallel_rank() == 0 and is_data_needed(vp_stage)

    if not args.mock_data:
        print_rank_0("> building GPT data sets ...")
        config = gpt_dataset_config()
        train, valid, test = BlendedMegatronDatasetBuilder(GPTDataset, num_samples, is_read_here, config).build()
        return train, valid, test
    if not is_read_here():
        return None, None, None
    train, valid, test = (
        WalkDataset(wanted or 1, args.seq_length, args.vocab_size or args.padded_vocab_size, split)
        for split, wanted in enumerate(num_samples)
    )
    return train, valid, test


datasets_provider.is_distributed = True  # type: ignore[attr-defined]  # Megatron calls it on every rank


# One micro-batch ----------------------------------------------------------------------------------------------------


def has_attention_mask() -> bool:
    """Causal attention needs no mask; only documents that must not see each other do."""
    args = get_args()
    return bool(args.reset_attention_mask and not args.mock_data)


def get_batch(data_iterator: Iterator[Batch], vp_stage: int | None) -> Batch:
    """The next micro-batch: read on TP rank 0, sent to the TP group, cut to this CP rank's part.

    Returns:
        KEYS to tensors [micro_batch_size, seq_length / CP], on the device; None for what this stage does not take.
    """
    if not is_data_needed(vp_stage):
        return dict.fromkeys(KEYS)
    args = get_args()
    tp_rank = mpu.get_tensor_model_parallel_rank()
    batch: Batch = {}
    if tp_rank == 0:
        data = next(data_iterator)
        batch = {key: data[key].cuda(non_blocking=True) if key in data else None for key in KEYS}
    batch = get_batch_on_this_tp_rank(
        batch,
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=has_attention_mask(),
        broadcast_src_rank=mpu.get_tensor_model_parallel_src_rank(),
        broadcast_group=mpu.get_tensor_model_parallel_group(),
        cp_size=args.context_parallel_size,
        tp_rank=tp_rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=bool(args.mtp_num_layers) and is_data_needed(vp_stage),
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=mpu.is_pipeline_first_stage(),
        is_pipeline_last_stage=mpu.is_pipeline_last_stage(),
    )
    batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=mpu.get_context_parallel_group())
    return {key: batch.get(key) for key in KEYS}


def loss_func(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sum of the losses of the tokens that count.

    Args:
        loss_mask: [micro_batch_size, seq_length / CP], 0 for tokens that do not count.
        output: Same shape, the loss of each token.
    Returns:
        The sum, the number of tokens that count, and both for the log.
    """
    mask = loss_mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    num_tokens = mask.sum().detach().to(torch.int)
    if get_args().check_for_nan_in_loss_and_grad:
        for is_bad in (torch.isnan, torch.isinf):
            get_rerun_state_machine().validate_result(
                result=loss,
                rejection_func=is_bad,
                message=f"{is_bad.__name__} in the local forward loss",
                tolerance=0.0,  # the forward pass is deterministic
                fatal=True,
            )
    report = torch.cat([loss.detach().view(1), num_tokens.view(1)])
    return loss, num_tokens, {"lm loss": report}


def forward_step(data_iterator: Iterator[Batch], model: Any) -> tuple[Tensor, Any]:
    """Forward pass of one micro-batch through this rank's chunk of the model."""
    batch = get_batch(data_iterator, get_attr_wrapped_model(model, "vp_stage"))
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch["attention_mask"],
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(loss_func, batch["loss_mask"])


# Start --------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Train as the command line says."""
    args = parse_and_validate_args(args_defaults={"tokenizer_type": "NullTokenizer"})
    model_config = gpt_config_from_args(args)
    config = pretrain_cfg_container_from_args(args, model_config)
    pretrain(config, datasets_provider, ModelType.encoder_or_decoder, forward_step)


if __name__ == "__main__":
    main()
