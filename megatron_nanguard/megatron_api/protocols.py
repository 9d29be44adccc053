"""What the guard reads of Megatron's objects: one class per kind of object, one line per attribute.

Nothing is instantiated from here and nothing is checked against it at run time: these are types for signatures, and the
list of what we rely on. "Since" and "until" name release lines of Megatron core, 0.8 being the first that is supported.
An attribute with a limit is read with ``getattr(..., default)`` or through ``vars``; one without is in every release.
`tests/contract/test_protocols.py` looks the names up in the sources of several releases.
Trainers may bring classes of their own, so isinstance is never asked.

Source: megatron/core/distributed, megatron/core/optimizer and megatron/core/transformer/transformer_config.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Module, Parameter

GradNorm = float | Tensor | None
"""What Megatron returns as gradient norm: a float until 0.16, since 0.17 perhaps a one-element tensor on the device;
None until 0.10 from a leaf optimizer that does not clip."""

StepResult = tuple[bool, GradNorm, int | None]
"""What an optimizer's ``step`` returns: whether the step was applied, gradient norm, number of zeros."""

Schedule = Callable[..., Any]
"""A forward-backward function of megatron/core/pipeline_parallel/schedules.py; it takes keyword arguments alone."""

ScheduleArguments = Mapping[str, Any]
"""Keyword arguments of a schedule. Read are ``model``, ``data_iterator``, ``forward_step_func``, ``num_microbatches``
and ``forward_only``."""

ForwardStep = Callable[..., Any]
"""``forward_step_func(data_iterator, model, ...)`` of the training script: returns the output and a `LossFunction`."""

LossFunction = Callable[..., Any]
"""``loss_func(output)``: returns (loss, values to log), or (sum of losses, number of tokens, values to log)."""


class ModelParameter(Parameter):
    """A parameter of the model, with the marks that Megatron puts on it.

    A class and not a protocol: it is a torch Parameter, and a protocol cannot say so.
    """

    main_grad: Tensor
    """Where its gradient is added up: a view of the buffer, or memory of its own. Missing with plain torch modules."""
    main_grad_copy_in_grad_buffer: Tensor | None
    """Since 0.17: the place in the buffer, in lower precision, where ``main_grad`` lies outside of it."""
    grad_added_to_main_grad: bool
    """Set by DDP: the backward has written into ``main_grad``, ``grad`` is not to be added any more."""
    tensor_model_parallel: bool
    """Split over tensor-parallel ranks; set even where there is only one of them."""
    partition_dim: int
    """The dim that is split; -1 for none."""
    sequence_parallel: bool
    """Its gradient is summed over the tensor-parallel ranks."""
    average_gradients_across_tp_domain: bool
    """Since 0.13: its gradient is averaged over the tensor-parallel ranks."""
    shared_embedding: bool
    """One of the two tied embeddings, of the first or the last pipeline stage."""
    shared: bool
    """The copy of a tied embedding that is left out of the gradient norm."""
    pipeline_parallel: bool
    """Its gradient is summed over the pipeline stages."""
    is_gtp_weight_remat: bool
    """Since 0.19: split over the GTP ranks (weight rematerialisation), so that they do not sum its gradient."""


class TransformerConfig(Protocol):
    """The config of a model, which its chunks share; the schedules read functions from it."""

    kv_channels: int | None
    """Width of an attention head."""
    qk_layernorm: bool
    """Whether queries and keys have a layer norm; its gradients are summed over the tensor-parallel ranks."""
    gtp_weight_remat_size: int
    """Since 0.19: how many ranks share the weights of dense layers for rematerialisation."""
    expert_gtp_weight_remat_size: int
    """Since 0.19: the same for experts."""
    param_sync_func: Callable[..., Any] | list[Callable[..., Any]] | None
    """Set by the training loop: gathers parameters ahead of time; one per chunk with virtual pipelining."""
    grad_scale_func: Callable[[Tensor], Tensor] | None
    """Set by the training loop: multiplies a loss by the loss scale; None without a scaler."""


class DDPConfig(Protocol):
    """``DistributedDataParallelConfig``."""

    use_distributed_optimizer: bool
    """Each data-parallel rank reduces and owns a shard of every bucket."""
    num_distributed_optimizer_instances: int
    """Since 0.10: groups of data-parallel ranks that each hold a whole optimizer state."""
    check_for_nan_in_grad: bool
    """Megatron's own check of every bucket before it is reduced."""


class Bucket(Protocol):
    """Contiguous gradients that are reduced in one piece: ``_ParamAndGradBucket``, in 0.8 ``Bucket``."""

    params_list: Sequence[ModelParameter]
    """Its parameters in the order of the buffer."""
    grad_data: Tensor
    """[numel, padded], flat view of the buffer."""
    offset: int
    """First element inside the buffer."""


class BucketGroup(Protocol):
    """Buckets that are communicated together: ``_ParamAndGradBucketGroup``, since 0.9."""

    buckets: Sequence[Bucket]
    is_last_microbatch: bool
    """Whether gradients that get ready in a backward may be reduced."""
    grad_reduce_handle: Any
    """Not None while a reduction is under way; until 0.9 ``communication_handle``."""
    param_gather_handle: Any
    """Not None while its parameters are being gathered."""
    param_gather_dispatched: bool
    """Whether the gather of this step was started."""

    def start_grad_sync(self) -> None:
        """Begin the reduction; since 0.16 takes ``force_all_reduce``."""


class SelfReducingBucket(Bucket, Protocol):
    """A bucket of 0.8, which communicates for itself: there are no bucket groups."""

    is_last_microbatch: bool
    communication_handle: Any
    """Not None while its reduction is under way."""
    is_communication_outstanding: bool

    def start_grad_sync(self) -> None:
        """Begin the reduction."""


AnyBucketGroup = BucketGroup | SelfReducingBucket
"""What calls ``start_grad_sync``: a bucket group, in 0.8 a bucket."""


class ParamAndGradBuffer(Protocol):
    """The gradients of one dtype and one data-parallel group of a chunk: ``_ParamAndGradBuffer``."""

    grad_data: Tensor
    """[numel, padded], flat."""
    buckets: Sequence[Bucket]
    param_index_map: Mapping[ModelParameter, tuple[int, int, int]]
    """First element, end and bucket number of each parameter."""
    data_parallel_group: ProcessGroup
    """Whose ranks reduce it; of one optimizer instance where there are several."""
    ddp_config: DDPConfig
    extra_main_grads: Sequence[Tensor]
    """Since 0.17: main grads that lie outside of the buffer."""


class ModelChunk(Module):
    """A piece of the model on one rank; with virtual pipelining a rank has several.

    Usually ``DistributedDataParallel`` around ``Float16Module`` around the model. FSDP and plain torch modules have
    none of the attributes below, and the lists hide what `Module` has under the same name: `vars` is asked.
    A class and not a protocol: it is a torch Module, and a protocol cannot say so.
    """

    buffers: list[ParamAndGradBuffer]  # type: ignore[assignment]
    """Gradient buffers of the dense parameters; the list hides ``nn.Module.buffers``."""
    expert_parallel_buffers: list[ParamAndGradBuffer]
    """Gradient buffers of the experts."""
    bucket_groups: list[BucketGroup]
    """Since 0.9."""
    expert_parallel_bucket_groups: list[BucketGroup]
    """Since 0.9."""
    config: TransformerConfig
    ddp_config: DDPConfig
    force_all_reduce: bool
    """Since 0.16: this step reduces whole buckets, in order to save the gradients."""
    vp_stage: int | None
    """Since 0.13: number of the chunk among those of its rank."""
    zero_grad_buffer: Callable[[], None]
    """Zero the buffers and move the bucket groups on to the next step."""


class OptimizerConfig(Protocol):
    """The config of an optimizer."""

    clip_grad: float
    """Norm that gradients are clipped to; 0 for none."""


class GradScaler(Protocol):
    """The loss scaler of mixed precision: ``ConstantGradScaler`` or ``DynamicGradScaler``."""

    @property
    def scale(self) -> Tensor:
        """[1], fp32 on the device."""

    def update(self, found_inf: bool) -> None:
        """Grow or back off after a step."""

    def state_dict(self) -> dict[str, Any]:
        """Scale and trackers; empty for a constant scale."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set what `state_dict` gave."""


class DynamicGradScaler(GradScaler, Protocol):
    """A scaler that adjusts itself; one of a trainer's own may lack ``hysteresis``."""

    min_scale: Tensor
    """[1], fp32 on the device."""
    growth_interval: int
    """Good steps after which the scale grows."""
    hysteresis: int
    """Overflows after which it backs off."""


class InnerOptimizer(Protocol):
    """The optimizer of torch, apex or Transformer Engine inside a leaf."""

    param_groups: Sequence[dict[str, Any]]
    """Groups with ``params``: the main parameters; apex and Transformer Engine also keep ``step`` there."""
    state: MutableMapping[Tensor, MutableMapping[str, Any]]
    """Moments and the like by main parameter; a defaultdict."""


class MegatronOptimizer(Protocol):
    """What ``get_megatron_optimizer`` returns: from 0.12 on a `ChainedOptimizer` (except FSDP), before also a leaf."""

    config: OptimizerConfig
    is_stub_optimizer: bool
    """Since 0.11: this rank has nothing to train."""
    model_chunks: Sequence[ModelChunk]
    """Since 0.9, not of every class: the chunks it was built for."""

    def prepare_grads(self) -> bool:
        """Copy, unscale and check the gradients; True makes ``step`` skip."""

    def step(self) -> StepResult:
        """Clip and update."""

    def zero_grad(self) -> None:
        """Zero the gradients of its parameters."""


class ChainedOptimizer(MegatronOptimizer, Protocol):
    """Several optimizers in one, for example of dense parameters and of experts. May be nested."""

    chained_optimizers: Sequence[MegatronOptimizer]


class MimoOptimizer(MegatronOptimizer, Protocol):
    """The optimizer of a MiMo model, since 0.17."""

    _active_optimizers: Sequence[MegatronOptimizer]
    """Those of the modules that this rank holds."""


class LeafOptimizer(MegatronOptimizer, Protocol):
    """An optimizer that holds no other of Megatron's: fp32, mixed precision or distributed."""

    optimizer: InnerOptimizer | None
    """None on a rank without parameters."""
    grad_scaler: GradScaler | None
    """None for bf16 without a scale; missing for fp32."""
    float16_groups: Sequence[Sequence[ModelParameter]]
    """Mixed precision: model parameters, group by group, beside ``fp32_from_float16_groups``."""
    fp32_from_float16_groups: Sequence[Sequence[Tensor]]
    """Mixed precision: their main parameters."""
    model_float16_groups: Sequence[Sequence[ModelParameter]]
    """Distributed optimizer: model parameters, beside ``shard_fp32_from_float16_groups``."""
    shard_fp32_from_float16_groups: Sequence[Sequence[Tensor | None]]
    """Distributed optimizer: shards of their main parameters; None where the inner optimizer keeps them itself."""
    model_fp32_groups: Sequence[Sequence[ModelParameter]]
    """Distributed optimizer: fp32 parameters, beside ``shard_fp32_groups``."""
    shard_fp32_groups: Sequence[Sequence[Tensor]]
    """Distributed optimizer: this rank's shards of them."""


class RngTracker(Protocol):
    """``CudaRNGStatesTracker``: named random states of the device, in megatron/core/tensor_parallel/random.py."""

    _current_state_name: str
    """Since 0.16 or a little earlier: the state that is in use."""

    def get_states(self) -> dict[str, Tensor | torch.Generator]:
        """The states by name; graph-safe ones are generators."""

    def set_states(self, states: dict[str, Tensor | torch.Generator]) -> None:
        """Replace them."""


class RerunStateMachine(Protocol):
    """Compares results and may ask for the step again; since 0.10, in megatron/core/rerun_state_machine.py."""

    validate_result: Callable[..., None]
    """``validate_result(result, rejection_func, message, ...)``."""


class Timers(Protocol):
    """Megatron's timers, in megatron/core/timers.py."""

    _timers: dict[str, object]
    """Each of them by name."""
