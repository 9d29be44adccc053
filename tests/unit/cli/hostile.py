"""Files of an incident as damage, another version or malice would leave them; the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.postmortem.loading import merge_directory, read_traces
from megatron_nanguard.postmortem.run_directory import RunDirectory, trace_name
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.diagnosis.factories import group, message, sink, to_arrival, to_origin, trace, traced_origin
from tests.unit.factories import ABORT, SIZES, demo_postmortem, fingerprint, place

STEP = "incidents/step_00000003"
PAYLOADS = (
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b31m",
    "</script><script>window.owned=1</script>",
    "\u202eabc",
    "a\r\nb\u2028c",
)
STARTED = fingerprint(
    run_id=demo_postmortem(0).run_id,
    versions={"torch": "2.14.0"},
    arguments={"save": "/data/checkpoints"},
    kernel_backends={"attention": "torch"},
    command_line=("pretrain_gpt.py", "--save", "/data/checkpoints"),
)
VALUES: tuple[Any, ...] = (
    *PAYLOADS,
    None,
    True,
    "",
    "x" * 5000,
    -1,
    0,
    2**31,
    2**63,
    1e308,
    -0.0,
    [],
    {},
    [[]],
    [{}],
    {"$float": "nan"},
    {"$float": []},
    {"$float": "inf", "more": 1},
    [0, 1, 2**40],
    ["\x1b[31m"],
)


def write_run(root: Path) -> Path:
    """A run with one incident: files of 8 ranks, two traces, the merged file and a bundle; gives back its directory."""
    run = RunDirectory(root, "20260101T120000Z-ab12", _complain)
    for rank in range(8):
        run.write_postmortem(STEP, demo_postmortem(rank))
    sent = message(20, group(4, 5), sent="nan", causes=to_origin())
    for seen in (
        trace(5, departures=(sent,), origins=(traced_origin(),), sinks=(sink(to_origin()),)),
        trace(4, arrivals=(message(20, group(4, 5)),), sinks=(sink(to_arrival(0)),)),
    ):
        run.write(f"{STEP}/{trace_name(place(seen.rank), SIZES)}", seen)
    directory = run.path / STEP
    merged = conclude(merge_directory(directory, policy=ABORT), read_traces(directory))
    run.write(f"{STEP}/incident.json", merged)
    run.write("fingerprint.json", STARTED)
    (directory / "bundle").mkdir()
    (directory / "bundle" / "call.json").write_bytes(to_json(SavedCall(rank=5, operator="aten.log.default")))
    return directory


def spoilt(content: bytes, seed: int) -> bytes:
    """One file, spoilt in a way that the seed decides."""
    chance = random.Random(seed)
    return chance.choice((*BY_BYTES, *BY_TREE * 4))(content, chance)


def _complain(line: str) -> None:
    raise AssertionError(line)


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _flip(content: bytes, chance: random.Random) -> bytes:
    flipped = bytearray(content)
    for _ in range(chance.randint(1, 20)):
        flipped[chance.randrange(len(flipped))] = chance.randrange(256)
    return bytes(flipped)


def _repeat(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content))
    return content[:start] + content[start : start + chance.randrange(200)] * 2 + content[start:]


def _nest(content: bytes, chance: random.Random) -> bytes:
    depth = chance.choice((10, 500, 5000, 100_000))
    return b"[" * depth + b"]" * depth


def _replace(content: bytes, chance: random.Random) -> bytes:
    """Put something else in the place of a value."""
    tree = orjson.loads(content)
    holder, key = chance.choice(list(_places(tree)))
    holder[key] = chance.choice(VALUES)
    return _text(tree, chance)


def _stay_plausible(content: bytes, chance: random.Random) -> bytes:
    """Put other values of the same type in many places, which no check of types can refuse."""
    tree = orjson.loads(content)
    for holder, key in chance.choices(list(_places(tree)), k=chance.choice((1, 3, 30))):
        value = holder[key]
        if key in CHOSEN or key == "schema_version":
            continue
        if type(value) in OF_TYPE:
            holder[key] = chance.choice(OF_TYPE[type(value)])
        elif isinstance(value, list):
            holder[key] = chance.choice(([], value * 3, value[::-1], value[:1]))
    return _text(tree, chance)


def _multiply(content: bytes, chance: random.Random) -> bytes:
    """Make numbers other numbers everywhere, as a later version could that counts differently."""
    tree = orjson.loads(content)
    factor = chance.choice((-1, 3, 1000, 2**40))
    for holder, key in list(_places(tree)):
        if type(holder[key]) is int and key != "schema_version":
            holder[key] *= factor
    return _text(tree, chance)


def _drop(content: bytes, chance: random.Random) -> bytes:
    tree = orjson.loads(content)
    holder, key = chance.choice(list(_places(tree)))
    del holder[key]
    return _text(tree, chance)


def _add(content: bytes, chance: random.Random) -> bytes:
    tree = orjson.loads(content)
    holders = [tree, *(holder[key] for holder, key in _places(tree) if isinstance(holder[key], dict))]
    chance.choice(holders)[chance.choice(("new", "", *PAYLOADS))] = chance.choice(VALUES)
    return _text(tree, chance)


def _other_version(content: bytes, chance: random.Random) -> bytes:
    tree = orjson.loads(content)
    tree["schema_version"] = chance.choice((0, 2, 99, "1", None, 1.5, [1], "\x1b[31m"))
    return _text(tree, chance)


def _poison_texts(content: bytes, chance: random.Random) -> bytes:
    """Put escape sequences and markup into every text that may hold anything."""
    tree = orjson.loads(content)
    payload = chance.choice(PAYLOADS)
    for holder, key in list(_places(tree)):
        if isinstance(holder[key], str) and chance.random() < 0.9 and key not in CHOSEN:
            holder[key] += payload
    return _text(tree, chance)


OF_TYPE: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, -1, 1, 3, 7, 8, 1000, 2**31, 2**62),
    float: (0.0, -1.5, 1e308, 5e-324, {"$float": "nan"}, {"$float": "-inf"}),
    str: (*PAYLOADS, "", "x" * 3000, "word " * 100, "%s{}{0}[bold]"),
}
CHOSEN = {"kind", "phase", "pattern", "sent", "arrived", "to", "where", "overflow_mode", "$float", "action"}
"""Keys with a fixed list of texts: another one would only be refused."""

Spoiler = Callable[[bytes, random.Random], bytes]
BY_BYTES: tuple[Spoiler, ...] = (_cut, _flip, _repeat, _nest)
BY_TREE: tuple[Spoiler, ...] = (
    _replace,
    _stay_plausible,
    _stay_plausible,
    _multiply,
    _drop,
    _add,
    _other_version,
    _poison_texts,
)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a tree, as its holder and its key or index."""
    if isinstance(tree, (dict, list)):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _text(tree: Any, chance: random.Random) -> bytes:
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if chance.random() < 0.8 else 0)
    return orjson.dumps(tree, option=options)
