"""Compare the state of two passes bit for bit without a copy: a 64-bit digest of each tensor, computed on its device.

digest = sum of mixed(word + weight of its place), modulo 2**64; a single changed word always changes it
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api import rng_tracker
from megatron_nanguard.megatron_api.buffers import gradient_tensors
from megatron_nanguard.megatron_api.process_state import accumulated_tensors
from megatron_nanguard.megatron_api.protocols import ModelChunk

RUN = 1 << 20
"""Words that are digested at a time, so that the intermediate tensors stay small."""
GOLDEN = -7046029254386353131
"""0x9E3779B97F4A7C15 as a signed number: odd, and its multiples spread over all bits."""
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def state_digests(chunks: Sequence[ModelChunk], device: Device) -> dict[str, str]:
    """Compute digests of the state that a schedule call leaves behind: 16 hex digits by the name of a part.

    Sync: one host read per part; only on an incident.
    """
    modules = [module for chunk in chunks for module in chunk.modules()]
    return {
        "gradients": _combined(gradient_tensors(chunks)),
        "parameters": _combined(param for chunk in chunks for param in chunk.parameters()),
        "buffers": _combined(b for module in modules for b in module._buffers.values() if b is not None),
        "random": _combined([torch.get_rng_state(), device.rng_state(), *rng_tracker.states().values()]),
        "accumulators": _combined(accumulated_tensors()),
    }


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the parts that are not the same bit for bit."""
    return tuple(name for name in one if one[name] != other[name])


@torch.no_grad()
def digest(tensor: Tensor) -> Tensor:
    """int64 [] on the tensor's device.

    Sync: none.
    """
    words = _words(tensor.detach())
    places = torch.arange(min(RUN, words.numel()), dtype=torch.int64, device=words.device).mul_(GOLDEN)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for number, run in enumerate(torch.split(words, RUN)):
        total = total * GOLDEN + _mixed(run.to(torch.int64) + places[: run.numel()]).sum() + number
    return total


def named_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """16 hex digits per tensor.

    Sync: one host read per tensor; only on an incident.
    """
    return {name: f"{int(digest(tensor)) & (1 << 64) - 1:016x}" for name, tensor in tensors.items()}


def _mixed(words: Tensor) -> Tensor:
    """Spread every bit over the word, in place. In a plain weighted sum two flipped signs would cancel out."""
    for _ in range(2):
        _fold(words).mul_(GOLDEN)
    return _fold(words)


def _fold(words: Tensor) -> Tensor:
    """Xor the upper half into the lower one. torch shifts the sign bit in, so it is masked to keep this reversible."""
    return words.bitwise_xor_((words >> 32).bitwise_and_(0xFFFFFFFF))


def _words(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, eight bytes each where the size allows."""
    flat = tensor.contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    if flat.nbytes % 8:
        return flat.view(WORDS[flat.element_size()])
    is_aligned = flat.storage_offset() * flat.element_size() % 8 == 0
    return (flat if is_aligned else flat.clone()).view(torch.int64)


def _combined(tensors: Iterable[Tensor]) -> str:
    """Digest of several tensors in order, with their shapes."""
    found = list(tensors)
    values = torch.stack([digest(tensor).to("cpu") for tensor in found]).tolist() if found else []
    text = repr([(tuple(tensor.shape), value) for tensor, value in zip(found, values, strict=True)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
