"""Who plants what on which rank, and what is said at the end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from megatron_nanguard.errors import DrillError
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.run.drill import DrillFile, DrillOutcome
from tests.unit.drill.models import X0, Chain, fired, plant, train

FORWARD = "nan@step=2,rank=0,mb=0,phase=forward,module=first"


def test_a_drill_for_another_rank_is_not_planted() -> None:
    drills = plant(FORWARD, Chain(), rank=1)
    assert (drills.drills, fired(drills)) == ((), {})


def test_a_drill_that_never_went_off_has_not_fired() -> None:
    model = Chain()
    late = "inf@step=1,rank=0,mb=9,phase=forward,module=second"
    drills = plant(f"{FORWARD};{late}", model)
    for step in (1, 2):
        train(drills, model, step)
    assert fired(drills) == {FORWARD: 1, late: 0}


def test_the_record_says_how_often_each_drill_fired() -> None:
    model = Chain()
    other = "nan@step=1,rank=*,phase=forward,module=decoder.layers.7"
    late = "nan@step=9,rank=0,phase=forward,module=second"
    drills = plant(f"{FORWARD};{other};{late}", model)
    for step in (1, 2, 2):
        train(drills, model, step)
    assert drills.record() == DrillFile(
        rank=0,
        drills=(
            DrillOutcome(text=FORWARD, is_planted=True, fired=2, steps=(2,), why_not=None),
            DrillOutcome(text=late, is_planted=True, fired=0, steps=(), why_not="its step or micro-batch never came"),
            DrillOutcome(
                text=other,
                is_planted=False,
                fired=0,
                steps=(),
                why_not=f"drill {other!r}: this rank has no module 'decoder.layers.7'; near it: first, second",
            ),
        ),
    )
    assert [drill.text for drill in drills.without_target()] == [other]
    assert from_json(DrillFile, to_json(drills.record())) == drills.record()


def test_a_missing_module_names_the_nearest() -> None:
    with pytest.raises(DrillError) as caught:
        plant("nan@step=1,rank=0,phase=forward,module=frist", Chain())
    assert str(caught.value) == (
        "drill 'nan@step=1,rank=0,phase=forward,module=frist': this rank has no module 'frist'; near it: first"
    )


def test_a_missing_parameter_without_a_near_name_lists_the_first_ones() -> None:
    with pytest.raises(DrillError, match=r"this rank has no param 'x'; near it: first\.weight, second\.weight"):
        plant("nan@step=1,rank=0,phase=wgrad,param=x", Chain())


def test_a_reduced_drill_on_a_rank_that_owns_no_part_is_refused_and_passed_over_by_all_ranks() -> None:
    model = Chain()
    model.first.weight.requires_grad_(False)
    with pytest.raises(DrillError, match=r"the optimizer of this rank owns no part of first\.weight"):
        plant("nan@step=1,rank=0,phase=reduced,param=first.weight", model)
    assert fired(plant("nan@step=1,rank=*,phase=reduced,param=first.weight", model)) == {}


def test_head_takes_its_width_from_the_models_config() -> None:
    model = Chain()
    spec = "head@step=1,rank=0,phase=forward,module=first,index=1"
    with pytest.raises(DrillError, match="the model's config names no head width"):
        plant(spec, model)
    model.config = SimpleNamespace(kv_channels=1)  # type: ignore[assignment]
    drills = plant(spec, model)
    drills.step_begins(1)
    assert model(torch.tensor([X0, X0])).isnan().tolist() == [[False, True], [False, True]]


def test_an_index_beyond_the_parameter_is_refused_before_training() -> None:
    with pytest.raises(DrillError, match=r"nan index 2 is outside \[0, 2\) of \(2,\), the elements there are"):
        plant("nan@step=1,rank=0,phase=wgrad,param=first.weight,index=2", Chain())


def test_an_index_beyond_the_tensor_changes_nothing_and_says_so() -> None:
    model = Chain()
    drills = plant("nan@step=1,rank=0,phase=forward,module=first,index=2", model)
    drills.step_begins(1)
    assert model(torch.tensor(X0)).tolist() == [10.0, 42.0]
    (outcome,) = drills.record().drills
    assert outcome.why_not == "step 1: nan index 2 is outside [0, 2) of (2,), the elements there are"


def test_several_drills_on_different_steps_fire_each_in_its_own() -> None:
    model = Chain()
    specs = [f"nan@step={step},rank=0,phase=wgrad,param=first.weight,index={step - 1}" for step in (1, 2)]
    drills = plant(";".join(specs), model)
    seen = []
    for step in (1, 2, 3):
        train(drills, model, step)
        assert model.first.weight.grad is not None
        seen.append(model.first.weight.grad.isnan().tolist())
    assert seen == [[True, False], [False, True], [False, False]]


def test_an_empty_tensor_has_nothing_to_poison() -> None:
    model = Chain()
    drills = plant("nan@step=1,rank=0,phase=forward,module=first", model)
    drills.step_begins(1)
    model(torch.zeros(0, 2))
    (outcome,) = drills.record().drills
    assert outcome.why_not == "step 1: there are no elements in [0, 0) of (0, 2)"
