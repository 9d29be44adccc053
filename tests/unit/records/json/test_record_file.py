"""Records as JSON and as files, written whole or not at all; what cannot be read gives one message."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import Incident, Infected
from megatron_nanguard.records.json.record_file import atomic_write, from_json, read_bytes, read_record, to_json
from megatron_nanguard.records.postmortem import Flags, Kind, Microbatch, Postmortem, RankSets
from tests.unit.factories import demo_postmortem, incident, postmortem


def test_a_record_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_bytes(to_json(Microbatch(1, 2.5, 64)))

    assert read_record(Microbatch, file) == Microbatch(1, 2.5, 64)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (Path.mkdir, "cannot be read: not a regular file"),
        (os.mkfifo, "cannot be read: not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (sparse, "cannot be read: 2147483648 bytes, expected at most 268435456; no file of a run is as large"),
    ],
    ids=["missing", "directory", "pipe", "device", "loop", "sparse"],
)
def test_what_is_no_file_of_a_run_is_said_to_be_none(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "one.json"
    make(path)

    with pytest.raises(PostmortemError) as caught:
        read_record(Microbatch, path)

    assert str(caught.value) == f"{path}: {message}"


def test_a_message_names_the_file_as_asked(tmp_path: Path) -> None:
    with pytest.raises(PostmortemError, match=r"^rank 5: cannot be read: No such file or directory$"):
        read_bytes(tmp_path / "one.json", "rank 5")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"index": 1e999}'])
def test_a_file_that_is_not_json_is_said_to_be_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(content)

    with pytest.raises(PostmortemError, match=r"one\.json: not JSON \(.*\); the file is damaged or was cut short$"):
        read_record(Microbatch, path)


@dataclass(frozen=True)
class Sample:
    """One field of each kind that the records use."""

    number: float | None
    pairs: tuple[tuple[int, int], ...]
    by_name: dict[str, tuple[int, ...]]
    kind: Kind
    renamed: int = field(default=7, metadata={"key": "from"})


def sample(**changes: object) -> dict[str, object]:
    return {"number": 1.5, "pairs": [[0, 4]], "by_name": {"dp": [0]}, "kind": "loss", "from": 3, **changes}


def test_every_kind_of_field_has_its_json_form() -> None:
    record = Sample(math.nan, ((0, 4), (8, 12)), {"tp": (3,)}, Kind.DEAD_STEP, 5)

    assert orjson.loads(to_json(record)) == {
        "number": {"$float": "nan"},
        "pairs": [[0, 4], [8, 12]],
        "by_name": {"tp": [3]},
        "kind": "dead_step",
        "from": 5,
    }


@pytest.mark.parametrize(("value", "tag"), [(math.inf, "inf"), (-math.inf, "-inf")])
def test_infinity_is_tagged_with_its_sign_and_read_back(value: float, tag: str) -> None:
    data = to_json(Microbatch(0, value, None))

    assert orjson.loads(data)["loss"] == {"$float": tag}
    assert from_json(Microbatch, data).loss == value


def test_nan_is_read_back_as_nan() -> None:
    loss = from_json(Microbatch, to_json(Microbatch(0, math.nan, None))).loss

    assert loss is not None and math.isnan(loss)


def test_a_whole_number_is_read_as_a_float() -> None:
    assert from_json(Sample, sample(number=2)).number == 2.0


def test_a_postmortem_and_an_incident_come_back_equal() -> None:
    clean = postmortem(7)
    merged = incident(
        infected=(Infected(2, "data-parallel reduction", "dp", (0,)),),
        causes=(RankedCause("undecided", 0.5, ("a",), (), ("b",), "c"),),
    )

    assert from_json(Postmortem, to_json(clean)) == clean
    assert from_json(Incident, to_json(merged)) == merged


def test_shared_keys_are_spelled_as_agreed() -> None:
    merged = orjson.loads(to_json(incident(infected=(Infected(2, "x", "dp", (0,)),))))

    assert merged["infected"][0] == {
        "rank": 2,
        "by": "x",
        "group": "dp",
        "from": [0],
        "first_used": None,
        "call": "",
        "gradients": [],
    }
    assert set(merged["ranks"]) == {"bad_before", "bad_after_only", "clean"}
    assert set(merged["replay"]) == {
        "done",
        "why_not",
        "exact",
        "stages",
        "passes",
        "previous_batch",
        "lower_scale",
        "obstacle",
        "finite_exact",
        "only_losses",
    }


def test_a_missing_key_with_a_default_takes_it() -> None:
    tree = sample()
    del tree["from"]

    assert from_json(Sample, tree).renamed == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": "x"}, """key number is 'x', expected a number or {"$float": "nan"|"inf"|"-inf"}"""),
        (
            {"number": {"$float": ["nan"]}},
            """key number is {'$float': ['nan']}, expected a number or {"$float": "nan"|"inf"|"-inf"}""",
        ),
        ({"number": True}, """key number is True, expected a number or {"$float": "nan"|"inf"|"-inf"}"""),
        ({"from": True}, "key from is True, expected an integer"),
        ({"pairs": [[0, 1], [2]]}, "key pairs[1] is [2], expected a list of 2 values"),
        ({"pairs": 3}, "key pairs is 3, expected a list"),
        ({"by_name": {"dp": ["a"]}}, "key by_name.dp[0] is 'a', expected an integer"),
        ({"by_name": []}, "key by_name is [], expected an object"),
        (
            {"kind": "lost"},
            "key kind is 'lost', expected one of gradient_before_reduction, gradient_after_reduction, loss, "
            "norm_overflow, dead_step",
        ),
        ({"extra": 1}, "key extra is 1, expected no such key in Sample"),
        ({"by_name": {"\x1b[2J": 0}}, r"key by_name.\x1b[2J is 0, expected a list"),
    ],
)
def test_a_wrong_value_is_named_with_path_and_expectation(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PostmortemError) as caught:
        from_json(Sample, sample(**changes), source="rank00001.json")

    assert str(caught.value) == f"rank00001.json: {message}"


def test_a_missing_key_is_named_with_its_path() -> None:
    tree = orjson.loads(to_json(postmortem(0)))
    del tree["flags"]["loss"]

    with pytest.raises(PostmortemError, match=r"^key flags\.loss is missing in Flags$"):
        from_json(Postmortem, tree)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(PostmortemError) as caught:
        from_json(Flags, orjson.dumps("x" * 500))

    assert str(caught.value) == f"key (top) is '{'x' * 76}..., expected an object (Flags)"


def test_another_schema_version_is_reported_before_anything_else() -> None:
    tree = {"schema_version": 2, "unheard": "of"}

    with pytest.raises(
        PostmortemError, match="key schema_version is 2, expected 1; read it with the version that wrote it"
    ):
        from_json(Incident, tree)


def test_a_file_cut_short_is_distinguished_from_a_wrong_one() -> None:
    data = to_json(demo_postmortem(5))[:1000]

    with pytest.raises(PostmortemError, match=r"^a\.json: not JSON .* the file is damaged or was cut short$"):
        from_json(Postmortem, data, source="a.json")


def test_a_record_inside_a_list_is_checked_too() -> None:
    tree = orjson.loads(to_json(RankSets((0, 1), (), ())))
    tree["bad_before"][1] = "one"

    with pytest.raises(PostmortemError, match=r"key bad_before\[1\] is 'one', expected an integer"):
        from_json(RankSets, tree)


def test_a_value_of_any_depth_is_shown_in_a_few_words() -> None:
    deep: object = 0
    for _ in range(900):
        deep = [deep]

    with pytest.raises(PostmortemError) as caught:
        from_json(Sample, sample(number=deep))

    assert len(str(caught.value)) < 150


def test_the_target_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


@pytest.mark.parametrize("raised", [OSError, ValueError, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_there_alone(tmp_path: Path, raised: type[BaseException]) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    with pytest.raises(raised), atomic_write(target) as temporary:
        temporary.write_text("half")
        raise raised

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_a_directory_under_the_name_of_the_target_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()

    with pytest.raises(IsADirectoryError), atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("new")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "rank00000_step00000001.pt", "call.json"])
def test_a_file_that_holds_tensors_is_for_its_owner_alone_from_the_first_byte_on(tmp_path: Path, name: str) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / f".{name}.{os.getpid()}").write_bytes(b"left by an earlier process of this number")
        with atomic_write(tmp_path / name) as temporary:
            is_private = temporary.exists() and temporary.stat().st_mode & 0o777 == 0o600
            temporary.write_bytes(b"numbers")
    finally:
        os.umask(before)
    holds_tensors = not name.endswith(".json")
    assert is_private == holds_tensors
    assert ((tmp_path / name).stat().st_mode & 0o077 == 0) == holds_tensors
    assert (tmp_path / name).read_bytes() == b"numbers"
