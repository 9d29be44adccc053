"""What a rank saves of a step: a record, and a file of tensors beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from megatron_nanguard.capture.tensor_file import file_bytes
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import read_record, to_json
from megatron_nanguard.records.step.capture import TENSORS_SUFFIX, CaptureFile, file_name


@dataclass(frozen=True, eq=False)
class Captured:
    """A rank's part of a step.

    Attributes:
        record: everything but the tensors.
        tensors: by name; before they are written these are the live tensors, not copies.
    """

    record: CaptureFile
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return len(to_json(self.record)) + (file_bytes(self.tensors) if self.tensors else 0)

    @property
    def has_content(self) -> bool:
        """Whether there is anything to write: data, a suspect call or tensors."""
        return bool(self.tensors or self.record.batch.iterators or self.record.calls)


def without_tensors(record: CaptureFile, why_not: str) -> CaptureFile:
    """The record to write where the tensors are not written, with the reason."""
    return replace(record, level="ids", random=None, numbers={}, left_out=(why_not, *record.left_out))


def read(incident: Path, rank: int) -> Captured:
    """Read what a rank saved; arguments and errors as for `check`."""
    record = check(incident, rank)
    with _tensors(incident, rank) as path:
        return Captured(record, load_file(path))


def check(incident: Path, rank: int) -> CaptureFile:
    """Read the record and check that `read` will succeed; of the file of tensors only the header is read.

    Args:
        incident: directory of the incident.
        rank: global rank.
    Raises:
        PostmortemError: it is missing, incomplete, or not what this package writes.
    """
    path = incident / file_name(rank)
    if not path.exists():
        raise PostmortemError(f"{path} is not there: --nanguard-capture full saves a step on every rank")
    record = read_record(CaptureFile, path)
    if record.is_redacted:
        raise PostmortemError(f"{path}: its tensors were stripped by nanguard redact")
    if record.level == "ids":
        asked = f" ({record.left_out[0]})" if record.left_out else ""
        raise PostmortemError(f"{path} holds digests alone{asked}; --nanguard-capture full saves the step")
    with _tensors(incident, rank) as tensors, safe_open(tensors, framework="pt"):
        return record


@contextmanager
def _tensors(incident: Path, rank: int) -> Iterator[Path]:
    """Give the file of tensors; an error of safetensors inside means that it is missing or damaged."""
    path = (incident / file_name(rank)).with_suffix(TENSORS_SUFFIX)
    try:
        yield path
    except (OSError, SafetensorError, ValueError) as error:
        raise PostmortemError(f"{path} cannot be read: {error}") from error
