"""The recipe of CONTRIBUTING.md for a drill phase, followed to the letter in a copy of the project."""

from __future__ import annotations

from pathlib import Path

from tests.unit.recipes.project_copy import ProjectCopy

NEW_FILE = '''"""Phase weight: a parameter itself, before the first micro-batch of a step."""

from __future__ import annotations

from megatron_nanguard.drill.poison import ElementRange
from megatron_nanguard.drill.targets import DrilledModel, find_entries
from megatron_nanguard.drill.trigger import PlantedDrill, Trigger


class WeightDrill(PlantedDrill):
    """Fires when a step begins."""

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger)
        self._params = [model.parameter_map.parameter(entry) for entry in find_entries(trigger.drill, model)]

    def step_begins(self, step: int) -> None:
        super().step_begins(step)
        for param in self._params:
            if self.trigger.fires_now():
                self.trigger.fire(param.detach(), ElementRange.whole(param), id(param))
'''

NEW_TEST = '''"""Phase weight: one element of a parameter, from the step of the drill on."""

from __future__ import annotations

import math

import pytest

from megatron_nanguard.drill.grammar import parse
from megatron_nanguard.errors import DrillError
from tests.unit.drill.models import Chain, fired, grads, plant, train

SPEC = "nan@step=2,rank=0,phase=weight,param=first.weight,index=1"


def test_the_weight_is_poisoned_in_its_step_and_not_before() -> None:
    drilled, twin = Chain(), Chain()
    drills = plant(SPEC, drilled)
    train(drills, drilled, step=1)
    train(None, twin, step=1)
    assert grads(drilled) == grads(twin)
    train(drills, drilled, step=2)
    assert drilled.first.weight[0].item() == 2.0
    assert math.isnan(drilled.first.weight[1].item())
    assert fired(drills) == {SPEC: 1}


def test_an_error_lists_the_phase() -> None:
    with pytest.raises(DrillError, match="allowed: forward, backward, wgrad, weight, reduced"):
        parse(SPEC.replace("weight", "wight", 1))
    with pytest.raises(DrillError, match="only with forward and backward"):
        parse(SPEC + ",module=first")
'''


def test_one_file_one_member_and_one_line_make_a_drill_phase(tmp_path: Path) -> None:
    project = ProjectCopy(tmp_path)
    project.write("megatron_nanguard/drill/weight.py", NEW_FILE)
    project.insert("megatron_nanguard/drill/spec.py", '    REDUCED = "reduced"', '    WEIGHT = "weight"')
    phases = "megatron_nanguard/drill/planted_drills.py"
    project.insert(phases, "    Phase.REDUCED: ", "    Phase.WEIGHT: WeightDrill,")
    project.insert(phases, "from megatron_nanguard.errors ", "from megatron_nanguard.drill.weight import WeightDrill")
    project.write("tests/unit/drill/test_weight.py", NEW_TEST)

    project.check("tests/unit/drill/test_weight.py")
