"""A user's model and batch, and the errors when they cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, Module

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.screening.grad_check.user_model import UserModel

HERE = "tests.unit.screening.grad_check.test_user_model"
CPU = torch.device("cpu")


class Summed(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum()  # type: ignore[no-any-return]


def with_loss() -> tuple[Module, object]:
    return Linear(3, 1), lambda model, batch: 2 * model(batch["x"]).sum()


def no_module() -> str:
    return "model"


def without_loss() -> tuple[Module, object]:
    return Linear(3, 1), lambda model, batch: model(batch["x"])


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    torch.save({"x": torch.ones(2, 3)}, tmp_path / "batch.pt")
    return tmp_path / "batch.pt"


def test_both_forms_of_a_model_give_a_loss(batch: Path) -> None:
    for form in ("Summed", "with_loss"):
        assert UserModel.load(f"{HERE}:{form}", batch).loss_on(CPU).shape == ()


def test_the_model_is_the_same_every_time(batch: Path) -> None:
    first, again = (UserModel.load(f"{HERE}:Summed", batch).loss_on(CPU) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no_such_module:build", "--model 'no_such_module:build': No module named 'no_such_module'; expected MODULE:F"),
        (f"{HERE}:nothing", "has no attribute 'nothing'; expected MODULE:FUNCTION, importable from"),
        (HERE, "expected MODULE:FUNCTION, importable from"),
        (f"{HERE}:no_module", "--model: the function gave str, expected a torch module whose forward"),
    ],
)
def test_a_function_that_builds_no_model_is_refused(batch: Path, model: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        UserModel.load(model, batch)
    assert message in str(refused.value)


def test_a_result_that_is_no_loss_is_refused(batch: Path) -> None:
    with pytest.raises(SettingsError, match=r"the loss is a tensor of shape \(2, 1\), expected one number"):
        UserModel.load(f"{HERE}:without_loss", batch).loss_on(CPU)


@pytest.mark.parametrize("name", ["batch.pt", "batch.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"not a batch"])
def test_a_batch_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=r"--batch .*: cannot be read"):
        UserModel.load(f"{HERE}:Summed", tmp_path / name)


def test_a_batch_without_names_is_refused(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "batch.pt")
    with pytest.raises(SettingsError, match=r"holds list, expected a dictionary of tensors"):
        UserModel.load(f"{HERE}:Summed", tmp_path / "batch.pt")
