"""The schemas of the files of a run: complete in words, and true of what is written."""

from __future__ import annotations

import math
from typing import Any

import jsonschema
import orjson
import pytest

from megatron_nanguard.postmortem.merging.incident import merge
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.json.fields import fields_of
from megatron_nanguard.records.json.file_kinds import FILE_KINDS
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.json.record_schema import documented_fields, schema_of
from megatron_nanguard.records.machine.screening import DeviceCheck, Outlier, RankScreening, Screening, Transfer
from megatron_nanguard.records.postmortem import Kind, Microbatch
from megatron_nanguard.records.run.drill import DrillFile, DrillOutcome, DrillPlan
from megatron_nanguard.records.run.fingerprint import ENVIRONMENT_ALLOW_LIST, Fingerprint, HostChange
from megatron_nanguard.records.run.parameters import ParameterEntry, ParameterMapFile
from megatron_nanguard.records.run.status import Status
from megatron_nanguard.records.step.capture import (
    CapturedBatch,
    CapturedCall,
    CapturedItem,
    CapturedIterator,
    CapturedRandom,
    Leaf,
)
from megatron_nanguard.records.suspect_call import (
    Argument,
    PeerAnswer,
    RowCut,
    SavedCall,
    SavedOutput,
    SavedTensor,
    Value,
)
from megatron_nanguard.records.trace import OriginKind, RankTrace, TensorFacts, TracedOrigin, TracedPlace
from tests.unit.factories import ABORT, SIZES, capture_file, demo_postmortem, incident, place, postmortem

ENTRY = ParameterEntry(
    0,
    "decoder.layers.2.w",
    "decoder.layers.0.w",
    (8, 8),
    "bfloat16",
    0,
    False,
    False,
    False,
    0,
    0,
    0,
    0,
    64,
    ((0, 32),),
)
ORIGIN = Origin(5, "tp1pp1dp0", 2, "backward", "decoder.layers.3.mlp", "mul", "0", "nan", None, ((0, 3),))
TRACED = TracedOrigin(
    event=7,
    kind=OriginKind.OPERATOR,
    operator="log",
    place=TracedPlace("forward", 2, 0, "decoder.layers.3.mlp"),
    outputs=(TensorFacts("0", (2, 3), "float32", "nan", 1, 0, math.inf, ((0, 1),)),),
)
CALL = SavedCall(
    rank=5,
    operator="aten.add.Scalar",
    args=(Argument("self", (Value("tensor", "self"),)), Argument("other", (Value("float", "nan"),))),
    tensors={"self": SavedTensor((2, 3), (3, 1), "float32", "cpu", True)},
    outputs=(SavedOutput("0", (2, 3), "float32", 6, 0, 0, (0, 0)),),
    rows=RowCut((0, 7), 8),
)
CAPTURE = capture_file(
    num_microbatches=4,
    batch=CapturedBatch(
        (CapturedIterator((CapturedItem((Leaf((), "tensor", "batch/0/0", (2, 32), "int64", "cpu"),)),)),),
        (0, None),
        True,
    ),
    calls=(CapturedCall("aten.log.default", "decoder.layers.3.mlp", "forward", ("call/0/self",)),),
    digests={"batch/0/0": "0123456789abcdef"},
    random=CapturedRandom(3, None, ("MT19937", 624, 0, 0.0), ("model-parallel-rng",), "default-rng"),
    numbers={"scaler 0, scale": 65536.0},
    gradients={"w": "0123456789abcdef"},
    norms={"w": math.nan},
    left_out=("buffer/x: a DTensor",),
)
SCREENING = Screening(
    started="2026-01-01T12:00:00+00:00",
    seconds=4.5,
    sizes=SIZES,
    outliers=(Outlier("link", (4, 6), "link from rank 4 to rank 6", ("rank 4 to rank 6: late",)),),
    hints=("slow: rank 0",),
    notes=(),
    ranks=(
        RankScreening(
            6,
            "host0",
            "Test CPU",
            devices=(DeviceCheck("memory", "right", "", "", 0.25),),
            transfers=(Transfer(4, 6, "arrived", "late", "", "0123456789abcdef", math.inf),),
        ),
    ),
)
EXAMPLES: list[tuple[str, Any]] = [
    ("answer", PeerAnswer(rank=3, device="cuda:0 A", outcome="finite")),
    ("call", CALL),
    ("capture", CAPTURE),
    ("postmortem", postmortem(0, ranks=None, groups=())),
    ("postmortem", demo_postmortem(5)),
    ("postmortem", postmortem(4, microbatches=(Microbatch(0, -math.inf, None),), grad_norm=math.nan)),
    ("incident", incident()),
    ("incident", incident(origin=(ORIGIN,), causes=(RankedCause("undecided", 0.1, (), (), (), ""),))),
    ("incident", merge(map(demo_postmortem, range(8)), exchanged=None, policy=ABORT, files=["a.json"])),
    ("param_map", ParameterMapFile(SCHEMA_VERSION, place(6), SIZES, None, (ENTRY,))),
    ("drill", DrillPlan(spec="nan@step=3")),
    ("drill_outcomes", DrillFile(rank=5, drills=(DrillOutcome("nan@step=3", True, 1, (3,), None),))),
    ("trace", RankTrace(rank=5, coords="tp1pp1dp0", microbatch=None, origins=(TRACED,))),
    ("screening", SCREENING),
    ("status", Status(rank=1, coordinates=None, steps_guarded=3, points_fired={"a": 3}, alarms=0, incidents=0)),
    (
        "fingerprint",
        Fingerprint(
            run_id="r",
            started="2026-01-01T12:00:00Z",
            world_size=8,
            versions={"torch": "2.14.0"},
            arguments={"bf16": "True"},
            environment={ENVIRONMENT_ALLOW_LIST[0]: "1"},
            kernel_backends={"attention": "local"},
            host_changes=(HostChange("--check-for-nan", "True", "False", "one rank would raise alone"),),
        ),
    ),
]


def validate(name: str, data: bytes) -> None:
    schema = schema_of(FILE_KINDS[name].record)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(orjson.loads(data))


def test_there_is_an_example_of_every_kind_of_file() -> None:
    assert {name for name, _ in EXAMPLES} == set(FILE_KINDS)


def test_the_record_of_a_kind_is_the_class_of_its_examples() -> None:
    assert [name for name, record in EXAMPLES if type(record) is not FILE_KINDS[name].record] == []


@pytest.mark.parametrize(("name", "record"), EXAMPLES)
def test_what_is_written_is_valid(name: str, record: Any) -> None:
    validate(name, to_json(record))


@pytest.mark.parametrize(
    ("key", "value"), [("step", "3"), ("kind", "lost"), ("grad_norm", {"$float": "NaN"}), ("unheard", 1)]
)
def test_what_a_record_would_not_hold_is_invalid(key: str, value: Any) -> None:
    tree = orjson.loads(to_json(incident()))
    tree[key] = value

    with pytest.raises(jsonschema.ValidationError):
        validate("incident", orjson.dumps(tree))


def test_a_field_is_described_by_the_docstring_of_its_class() -> None:
    properties = schema_of(Coordinates)["properties"]

    assert properties["pp"] == {"description": "pipeline stage.", "type": "integer"}


def test_every_member_of_kind_is_explained() -> None:
    assert set(documented_fields(Kind)) == set(Kind.__members__)


@pytest.mark.parametrize("cls", [kind.record for kind in FILE_KINDS.values()])
def test_no_docstring_names_a_field_that_is_gone(cls: type) -> None:
    assert set(documented_fields(cls)) == {name for name, _, _, _ in fields_of(cls)}
