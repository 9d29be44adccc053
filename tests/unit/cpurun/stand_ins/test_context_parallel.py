from __future__ import annotations

from dataclasses import dataclass

import torch

from megatron_nanguard.cpurun.stand_ins.context_parallel import gather_sequence, zigzag_positions


@dataclass
class Alone:
    """The group of one rank."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def test_each_rank_holds_a_chunk_from_the_front_and_its_mirror() -> None:
    assert zigzag_positions(8, 2).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert zigzag_positions(4, 1).tolist() == [[0, 1, 2, 3]]


def test_a_rank_alone_gets_its_own_keys_and_the_causal_mask() -> None:
    key, value = torch.randn(4, 1, 2, 8), torch.randn(4, 1, 2, 8)

    whole_key, whole_value, mask = gather_sequence(key, value, None, Alone())

    assert whole_key is key
    assert whole_value is value
    assert mask.shape == (1, 1, 4, 4)
    assert torch.equal(mask[0, 0], torch.ones(4, 4, dtype=torch.bool).triu(1))


def test_a_mask_of_the_data_loader_is_kept() -> None:
    key, given = torch.randn(4, 1, 2, 8), torch.zeros(1, 1, 4, 4, dtype=torch.bool)

    assert gather_sequence(key, key, given, Alone())[2] is given
