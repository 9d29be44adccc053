from __future__ import annotations

from typing import Any

import pytest


def test_a_draw_without_a_generator_leaves_the_cpu_state_alone(mapped: Any) -> None:
    mapped.manual_seed(7)
    cpu, device = mapped.get_rng_state(), mapped.cuda.get_rng_state()

    mapped.nn.init.normal_(mapped.empty(3))

    assert mapped.equal(mapped.get_rng_state(), cpu)
    assert not mapped.equal(mapped.cuda.get_rng_state(), device)


def test_a_cpu_draw_leaves_the_device_state_alone(mapped: Any) -> None:
    mapped.manual_seed(7)
    cpu, device = mapped.get_rng_state(), mapped.cuda.get_rng_state()

    mapped.rand(3)

    assert not mapped.equal(mapped.get_rng_state(), cpu)
    assert mapped.equal(mapped.cuda.get_rng_state(), device)


def test_a_device_draw_uses_the_device_state(mapped: Any) -> None:
    mapped.manual_seed(7)
    cpu = mapped.get_rng_state()

    first = mapped.rand(3, device="cuda")
    mapped.cuda.manual_seed(7)
    again = mapped.rand(3, device=mapped.cuda.current_device())

    assert mapped.equal(first, again)
    assert mapped.equal(mapped.get_rng_state(), cpu)


def test_the_data_loaders_seed_comes_from_the_cpu(mapped: Any) -> None:
    mapped.manual_seed(7)
    device = mapped.cuda.get_rng_state()

    mapped.empty((), dtype=mapped.int64).random_()

    assert mapped.equal(mapped.cuda.get_rng_state(), device)


def test_manual_seed_seeds_both(mapped: Any) -> None:
    mapped.manual_seed(7)

    assert mapped.initial_seed() == mapped.cuda.initial_seed() == 7
    mapped.cuda.manual_seed(8)
    assert (mapped.initial_seed(), mapped.cuda.initial_seed()) == (7, 8)


def test_device_state_goes_out_and_in(mapped: Any) -> None:
    state = mapped.cuda.get_rng_state(device="cuda")
    first = mapped.rand(2, device="cuda")

    mapped.cuda.set_rng_state(state, device=0)

    assert mapped.equal(mapped.rand(2, device="cuda"), first)


def test_default_generators_end_at_the_last_device(mapped: Any) -> None:
    generators = mapped.cuda.default_generators

    assert len(list(generators)) == 2
    with pytest.raises(IndexError):
        generators[2]


def test_no_function_has_two_names_for_dynamo(mapped: Any) -> None:
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    get_torch_obj_rule_map.cache_clear()
    assert get_torch_obj_rule_map()
