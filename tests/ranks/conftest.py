"""Healthy runs that several tests look at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS

END_STATE = Path(__file__).with_name("end_state.py")


class Run(NamedTuple):
    """A run of `end_state.py`.

    Attributes:
        ranks: what each rank wrote.
        folder: its working directory.
    """

    ranks: list[dict[str, Any]]
    folder: Path


class Pair(NamedTuple):
    """The same training twice."""

    stock: Run
    guarded: Run


EndStates = Callable[..., Pair]
"""(name of a layout, further arguments, environment by name) -> the two runs."""


@pytest.fixture(scope="session")
def end_states(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> EndStates:
    """Three healthy steps of a layout, stock Megatron without NaN checks against guarded Megatron with its own on."""

    def run(layout: str, kind: str, *more: str, env: dict[str, str], in_rank: str | None = None) -> Run:
        folder = tmp_path_factory.mktemp(f"{layout}_{kind}")
        chosen = LAYOUTS[layout].plus(*more)
        env = {"END_STATE_DIR": str(folder), **env}
        finished = ranks.run(chosen.nproc, END_STATE, chosen.args, env=env, in_rank=in_rank, cwd=folder)
        assert finished.code == 0, finished.out
        return Run([torch.load(folder / f"rank{rank}.pt") for rank in range(chosen.nproc)], folder)

    @functools.cache
    def both(layout: str, *more: str, **env: str) -> Pair:
        return Pair(
            run(layout, "stock", *more, "--no-check-for-nan-in-loss-and-grad", env=env),
            run(layout, "guarded", *more, "--nanguard", env=env, in_rank="megatron_nanguard:enable"),
        )

    return both
