"""The attributes that names, places and pieces are read from, in the sources of every supported end of the range."""

from __future__ import annotations

import pytest

from megatron_nanguard.megatron_api.parallel import _GETTERS
from tests.contract.sources import RELEASES, release

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

SET_IN_EVERY_RELEASE = {
    "megatron.core.distributed.param_and_grad_buffer": (
        *("self.params_list =", "self.grad_data =", "self.offset =", "self.buckets ="),
        *("self.param_index_map", "self.data_parallel_group =", "self.ddp_config ="),
    ),
    "megatron.core.distributed.distributed_data_parallel": (
        *("self.buffers", "self.expert_parallel_buffers", "def zero_grad_buffer(self"),
    ),
    "megatron.core.pipeline_parallel.schedules": (
        *("def forward_step(", "def backward_step(", "current_microbatch=", "return output_tensor, num_tokens"),
    ),
    "megatron.core.tensor_parallel.random": ("_CUDA_RNG_STATE_TRACKER", "def get_states(self", "def set_states(self"),
    "megatron.core.timers": ("self._timers = {}", "self._timers[name]"),
    "megatron.core.optimizer.optimizer": ("self.float16_groups = []", "self.fp32_from_float16_groups = []"),
    "megatron.core.optimizer.distrib_optimizer": (
        *("self.model_float16_groups,", "self.shard_fp32_from_float16_groups,"),
        *("self.model_fp32_groups,", "self.shard_fp32_groups,"),
    ),
    "megatron.core.transformer.moe.moe_layer": ("self.local_expert_indices =",),
    "megatron.core.transformer.transformer_layer": ("self.layer_number =",),
    "megatron.core.models.common.language_module.language_module": (".shared_embedding = True", ".shared = True"),
}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("module", SET_IN_EVERY_RELEASE)
def test_the_release_sets_what_is_read(version: str, module: str) -> None:
    source = release(version)
    text = source.files[source.modules[module]]
    assert [attribute for attribute in SET_IN_EVERY_RELEASE[module] if attribute not in text] == []


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("axis", _GETTERS)
def test_the_release_has_a_group_getter_for_every_axis(version: str, axis: str) -> None:
    source = release(version)
    getters = (f"megatron.core.parallel_state:{getter}" for getter in _GETTERS[axis])
    assert any(source.parameters(getter) is not None for getter in getters)
