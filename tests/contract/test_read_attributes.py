"""The attributes that names, places and pieces are read from, in the sources of every supported end of the range."""

from __future__ import annotations

import pytest

from megatron_nanguard.megatron_api.parallel import _AXES
from tests.contract.sources import RELEASES, release

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

SET_IN_EVERY_RELEASE = {
    "megatron.core.distributed.param_and_grad_buffer": (
        *("self.params_list =", "self.grad_data =", "self.offset =", "self.buckets ="),
        *("self.param_index_map", "self.data_parallel_group =", "self.ddp_config ="),
    ),
    "megatron.core.distributed.distributed_data_parallel": ("self.buffers", "self.expert_parallel_buffers"),
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
@pytest.mark.parametrize("axis", _AXES)
def test_the_release_has_a_group_getter_for_every_axis(version: str, axis: str) -> None:
    source = release(version)
    getters = (f"megatron.core.parallel_state:{getter}" for getter in _AXES[axis].getters)
    assert any(source.parameters(getter) is not None for getter in getters)
