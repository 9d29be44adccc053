"""Files that say the same are decoded once; what they say is what a reader of single files gives."""

from __future__ import annotations

import gc
from pathlib import Path

import orjson
import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.caching_reader import CachingReader, paused_collection
from megatron_nanguard.records.json.record_file import read_record, to_json
from megatron_nanguard.records.postmortem import Postmortem, ReducedState
from tests.unit.factories import bad_parameter, demo_postmortem, postmortem

MANY = ReducedState(1.0, 1, tuple(bad_parameter(f"decoder.layers.{layer}.weight", norm=1.0) for layer in range(30)), 0)


def write(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def test_long_equal_parts_become_one_object(tmp_path: Path) -> None:
    reader = CachingReader(Postmortem)
    first, second = (
        reader.read(write(tmp_path, f"{rank}", to_json(postmortem(rank, reduced=MANY))), "x") for rank in (2, 6)
    )

    assert first == postmortem(2, reduced=MANY)
    assert second == postmortem(6, reduced=MANY)
    assert first.reduced is second.reduced


@pytest.mark.parametrize("rank", range(8))
def test_a_file_is_read_as_if_alone(tmp_path: Path, rank: int) -> None:
    path = write(tmp_path, "rank", to_json(demo_postmortem(rank)))
    reader = CachingReader(Postmortem)

    assert repr(reader.read(path, "x")) == repr(read_record(Postmortem, path))
    assert repr(reader.read(path, "x")) == repr(demo_postmortem(rank))


@pytest.mark.parametrize("option", [0, orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS])
def test_another_form_of_the_same_is_read_too(tmp_path: Path, option: int) -> None:
    tree = orjson.loads(to_json(postmortem(3, reduced=MANY)))

    path = write(tmp_path, "rank", orjson.dumps(tree, option=option))

    assert CachingReader(Postmortem).read(path, "x") == postmortem(3, reduced=MANY)


def test_a_missing_key_with_a_default_takes_it(tmp_path: Path) -> None:
    tree = orjson.loads(to_json(postmortem(3)))
    del tree["notes"]

    path = write(tmp_path, "rank", orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    assert CachingReader(Postmortem).read(path, "x") == postmortem(3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"step": 3', b'"step": "3"', "x: key step is '3', expected an integer"),
        (b'  "step": 3,\n', b"", "x: key step is missing in Postmortem"),
        (b'"pieces": 1,', b'"pieces": 1, "more": 2,', "x: key reduced.more is 2, expected no such key in ReducedState"),
        (
            b'"schema_version": 1',
            b'"schema_version": 2',
            "x: key schema_version is 2, expected 1; read it with the version that wrote it",
        ),
    ],
)
def test_an_error_reads_as_that_of_a_single_file(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    content = to_json(postmortem(3, reduced=MANY))
    assert old in content

    with pytest.raises(PostmortemError) as caught:
        CachingReader(Postmortem).read(write(tmp_path, "rank", content.replace(old, new, 1)), "x")

    assert str(caught.value) == message


def test_the_collector_is_on_again_afterwards() -> None:
    with pytest.raises(ZeroDivisionError), paused_collection():
        assert not gc.isenabled()
        raise ZeroDivisionError

    assert gc.isenabled()
