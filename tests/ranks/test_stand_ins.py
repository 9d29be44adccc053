"""The stand-ins inside Megatron, tried on Megatron itself: each script asserts in the rank it runs in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_server import Server

pytestmark = pytest.mark.ranks

MEGATRON = """
import os, torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron_nanguard.cpurun import stand_ins

torch.distributed.init_process_group("nccl")
world = torch.distributed.get_world_size()

def config(**changes):
    plain = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "masked_softmax_fusion": False}
    return TransformerConfig(**plain, **changes)

def attention(**changes):
    return DotProductAttention(config(attention_dropout=0.0, **changes), 1, AttnMaskType.causal, "self")

def attend(module, query, key, value, mask=None):
    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    output = module(*inputs, mask)
    (output * torch.arange(1.0, output.size(-1) + 1)).sum().backward()
    return output.detach(), *(x.grad for x in inputs)
"""

AT_SIZE_ONE = """
parallel_state.initialize_model_parallel()
model_parallel_cuda_manual_seed(1)
query, key, value = torch.randn(3, 8, 2, 2, 8, dtype=torch.float64).to(getattr(torch, os.environ["DTYPE"]))
module = attention()
assert not hasattr(module, "gathered_over")
expected = attend(module, query, key, value)
module.gathered_over = parallel_state.get_context_parallel_group()
for mine, theirs in zip(attend(module, query, key, value), expected):
    assert torch.equal(mine, theirs)
"""

AT_SIZE_TWO = """
from megatron_nanguard.cpurun.stand_ins.context_parallel import zigzag_positions
parallel_state.initialize_model_parallel(context_parallel_size=2)
model_parallel_cuda_manual_seed(1)
rank = parallel_state.get_context_parallel_rank()
mine = zigzag_positions(8, 2)[rank]
whole = torch.randn(3, 8, 2, 2, 8)
expected = [x[mine] for x in attend(attention(), *whole)]
parts = [x[mine] for x in whole]
module = attention(context_parallel_size=2)
assert module.config.context_parallel_size == 2
got = attend(module, *parts)
mask = torch.ones(8, 8, dtype=torch.bool).triu(1)[mine][None, None]
for found, same, wanted in zip(got, attend(module, *parts, mask), expected):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert torch.equal(found, same)
"""

BY_NAME = """
parallel_state.initialize_model_parallel(context_parallel_size=2)
try:
    DotProductAttention(config(context_parallel_size=2), 1, AttnMaskType.padding, "self")
except NotImplementedError as refused:
    assert "layer 1: padding self attention with context parallel size 2" in str(refused), refused
else:
    raise AssertionError("built")
"""

NORM = """
plain = WrappedTorchNorm(config(), 16)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
parallel = WrappedTorchNorm(config(sequence_parallel=True, tensor_model_parallel_size=2), 16)
assert not hasattr(plain.weight, "sequence_parallel")
assert parallel.weight.sequence_parallel and parallel.bias.sequence_parallel
x = torch.randn(4, 16)
assert torch.equal(parallel(x), plain(x))
"""

RESTORED = """
before = DotProductAttention.__init__, DotProductAttention.forward
stand_ins.restore()
assert not hasattr(DotProductAttention.__init__, "__wrapped__")
assert (DotProductAttention.__init__, DotProductAttention.forward) == tuple(x.__wrapped__ for x in before)
parallel_state.initialize_model_parallel()
for build in (
    lambda: attention(context_parallel_size=2),
    lambda: WrappedTorchNorm(config(sequence_parallel=True, tensor_model_parallel_size=2), 16),
):
    try:
        build()
    except AssertionError:
        continue
    raise RuntimeError("Megatron does not refuse by itself: this stand-in can go")
stand_ins.after_import()
assert DotProductAttention.__init__.__wrapped__ is before[0].__wrapped__
"""

HELPERS = """
import numpy, pathlib, subprocess
from megatron.core.datasets import helpers, utils
assert not (pathlib.Path(utils.__file__).parent / "Makefile").exists(), "the wheel has one: this stand-in can go"
subprocess.run = None
utils.compile_helpers()
index = numpy.zeros(4, dtype=numpy.int16)
sample = numpy.zeros(4, dtype=numpy.int64)
helpers.build_blending_indices(index, sample, numpy.array([0.5, 0.5]), 2, 4, False)
assert sorted(index.tolist()) == [0, 0, 1, 1]
"""


@pytest.mark.parametrize(
    ("nproc", "script"),
    [
        pytest.param(2, AT_SIZE_TWO, id="context parallel attention agrees with the whole sequence, with either mask"),
        pytest.param(2, BY_NAME, id="other than causal attention is refused by name"),
        pytest.param(2, NORM, id="a norm under sequence parallelism does the same sums and is marked"),
        pytest.param(1, RESTORED, id="restored, Megatron refuses again"),
        pytest.param(1, HELPERS, id="the compiled helpers serve without make"),
    ],
)
def test_stand_in(ranks: Server, tmp_path: Path, nproc: int, script: str) -> None:
    (tmp_path / "script.py").write_text(MEGATRON + script, encoding="utf-8")

    finished = ranks.run(nproc, tmp_path / "script.py", cwd=tmp_path)

    assert finished.code == 0, finished.out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_context_parallel_attention_at_size_one_is_megatrons_bit_for_bit(
    ranks: Server, tmp_path: Path, dtype: str
) -> None:
    (tmp_path / "script.py").write_text(MEGATRON + AT_SIZE_ONE, encoding="utf-8")

    finished = ranks.run(1, tmp_path / "script.py", cwd=tmp_path, env={"DTYPE": dtype})

    assert finished.code == 0, finished.out
