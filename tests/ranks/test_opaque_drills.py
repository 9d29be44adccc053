"""Drills on layers whose kernels no dispatcher sees: the same ranks, groups and parameters as on the local spec."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS
from tests.ranks.planted import GRID
from tests.ranks.planted.incident import Case
from tests.ranks.test_drills import train_with_faults

pytestmark = [pytest.mark.ranks, pytest.mark.long]

OPAQUE = ("--spec", "tests.opaque.spec", "layer_spec")
RENAMED = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
"""A norm in front of a linear layer is a part of it."""
MLP_INPUT = re.compile(r"phase=backward,module=(decoder\.layers\.\d+\.mlp)\b")


def renamed(text: str) -> str:
    for norm, merged in RENAMED.items():
        text = text.replace(norm, merged)
    return text


def on_opaque_layers(case: Case) -> Case:
    """The same case by the names of this spec; the input of an MLP is that of its norm, which a fault there spares."""
    if case.incident is None:
        return replace(case, drill=renamed(case.drill))
    spared = [f"{module}.linear_fc1.layer_norm_" for module in MLP_INPUT.findall(case.drill)]

    def names(of_local: set[str]) -> set[str]:
        return {name for name in map(renamed, of_local) if not name.startswith(tuple(spared))}

    incident = replace(case.incident, local=names(case.incident.local), reduced=names(case.incident.reduced))
    return replace(case, drill=renamed(case.drill), incident=incident)


@pytest.mark.parametrize("layout", ["A", "D2"])
def test_planted_faults_are_reported_as_on_the_local_spec(ranks: Server, tmp_path: Path, layout: str) -> None:
    cases = [on_opaque_layers(case) for case in GRID[layout]]

    train_with_faults(ranks, tmp_path, LAYOUTS[layout].plus(*OPAQUE), cases)
