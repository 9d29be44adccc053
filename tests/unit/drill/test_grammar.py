"""The text of `--nanguard-drill`, and every mistake with the place it is in."""

from __future__ import annotations

import pytest

from megatron_nanguard.drill.grammar import parse
from megatron_nanguard.drill.spec import Drill, Pattern, Phase
from megatron_nanguard.errors import DrillError

DEMO = "nan@step=3,rank=5,mb=2,phase=backward,module=decoder.layers.3.mlp"
WGRAD = "-inf@step=1,rank=0,phase=wgrad,param=decoder.layers.0.mlp.linear_fc1.weight"


def test_a_module_drill_is_read_in_full() -> None:
    assert parse(DEMO) == (
        Drill(
            text=DEMO,
            pattern=Pattern.NAN,
            phase=Phase.BACKWARD,
            first_step=3,
            last_step=3,
            ranks=(5,),
            target="decoder.layers.3.mlp",
            microbatch=2,
        ),
    )


def test_several_drills_keep_their_order_and_lose_the_blanks_around_them() -> None:
    first, second = parse(f" {DEMO} ;\t{WGRAD}")
    assert (first.text, second.text) == (DEMO, WGRAD)
    assert (second.pattern, second.phase) == (Pattern.NEGATIVE_INF, Phase.WGRAD)


def test_blanks_inside_a_drill_do_not_matter() -> None:
    drill = parse("inf @ step = 2 , rank = 1 , phase = forward , module = decoder , index = 7 , once")[0]
    assert (drill.first_step, drill.ranks, drill.target, drill.index, drill.once) == (2, (1,), "decoder", 7, True)


@pytest.mark.parametrize(
    ("step", "first", "last"), [("4", 4, 4), ("2-6", 2, 6), ("*", 1, None)], ids=["one", "range", "all"]
)
def test_steps(step: str, first: int, last: int | None) -> None:
    drill = parse(f"nan@step={step},rank=0,phase=forward,module=decoder")[0]
    assert (drill.first_step, drill.last_step) == (first, last)


@pytest.mark.parametrize(("rank", "ranks"), [("7", (7,)), ("5+2", (2, 5)), ("*", None)], ids=["one", "list", "all"])
def test_ranks(rank: str, ranks: tuple[int, ...] | None) -> None:
    assert parse(f"nan@step=1,rank={rank},phase=forward,module=decoder")[0].ranks == ranks


@pytest.mark.parametrize("pattern", [pattern.value for pattern in Pattern])
def test_every_pattern_is_read(pattern: str) -> None:
    assert parse(f"{pattern}@step=1,rank=0,phase=reduced,param=w")[0].pattern.value == pattern


def test_the_error_shows_the_whole_text_and_the_place() -> None:
    text = "nan@step=1,rank=0,phase=forward,module=decoder;inf@step=1,rank=*,phase=wgard,param=w"
    with pytest.raises(DrillError) as caught:
        parse(text)
    assert str(caught.value) == (
        f"'wgard' is no phase; allowed: forward, backward, wgrad, reduced\n  {text}\n{' ' * 73}^^^^^"
    )


MISTAKES = {
    "empty": ("", "", "a drill reads PATTERN@KEY=VALUE,KEY=VALUE"),
    "no pattern": ("step=1,rank=0", "step=1,rank=0", "a drill reads PATTERN@KEY=VALUE,KEY=VALUE"),
    "nothing after the semicolon": (f"{DEMO};", "", "a drill reads PATTERN@KEY=VALUE,KEY=VALUE"),
    "pattern": (
        "nann@step=1,rank=0,phase=forward,module=decoder",
        "nann",
        "'nann' is no pattern; allowed: nan, inf, -inf, 1e30, row, head, stale",
    ),
    "key": (
        "nan@step=1,rnk=0,phase=forward,module=decoder",
        "rnk",
        "'rnk' is no key; allowed: step, rank, mb, phase, module, param, index, once",
    ),
    "key twice": ("nan@step=1,step=2,rank=0,phase=forward,module=decoder", "step=2", "'step' is given twice"),
    "no value": ("nan@step,rank=0,phase=forward,module=decoder", "step", "'step' takes one value: step=VALUE"),
    "empty value": ("nan@step=1,rank=,phase=forward,module=decoder", "rank=", "'rank' takes one value: rank=VALUE"),
    "two values": (
        "nan@step=1=2,rank=0,phase=forward,module=decoder",
        "step=1=2",
        "'step' takes one value: step=VALUE",
    ),
    "once with a value": (
        "nan@step=1,rank=0,phase=forward,module=decoder,once=1",
        "once=1",
        "'once' takes no value",
    ),
    "step zero": (
        "nan@step=0,rank=0,phase=forward,module=decoder",
        "0",
        "steps count from 1, as in the training log, and A-B needs A <= B",
    ),
    "a step of thousands of digits": (
        f"nan@step={'9' * 5000},rank=0,phase=forward,module=decoder",
        "9" * 5000,
        f"'{'9' * 5000}' is no step; allowed: N, A-B or *",
    ),
    "steps backwards": (
        "nan@step=4-2,rank=0,phase=forward,module=decoder",
        "4-2",
        "steps count from 1, as in the training log, and A-B needs A <= B",
    ),
    "step": (
        "nan@step=last,rank=0,phase=forward,module=decoder",
        "last",
        "'last' is no step; allowed: N, A-B or *",
    ),
    "rank": (
        "nan@step=1,rank=5-7,phase=forward,module=decoder",
        "5-7",
        "'5-7' is no rank; allowed: N, A+B+C or *",
    ),
    "micro-batch": (
        "nan@step=1,rank=0,mb=-1,phase=forward,module=decoder",
        "-1",
        "'-1' is no whole number from 0 on",
    ),
    "name": (
        "nan@step=1,rank=0,phase=forward,module=decoder..mlp",
        "decoder..mlp",
        "'decoder..mlp' is no global name such as decoder.layers.3.mlp",
    ),
    "rank missing": (
        "nan@step=1,phase=forward,module=decoder",
        "nan@step=1,phase=forward,module=decoder",
        "'rank' is missing; every drill needs step, rank, phase, and module or param",
    ),
    "module missing": (
        "nan@step=1,rank=0,phase=forward",
        "nan@step=1,rank=0,phase=forward",
        "'module' is missing; phase forward needs it",
    ),
    "param with forward": (
        "nan@step=1,rank=0,phase=forward,module=decoder,param=w",
        "param=w",
        "'param' does not go with phase forward, only with wgrad and reduced",
    ),
    "module with reduced": (
        "nan@step=1,rank=0,phase=reduced,module=decoder,param=w",
        "module=decoder",
        "'module' does not go with phase reduced, only with forward and backward",
    ),
    "micro-batch with wgrad": (
        "nan@step=1,rank=0,mb=1,phase=wgrad,param=w",
        "mb=1",
        "'mb' does not go with phase wgrad, only with forward and backward: a main_grad is the sum over micro-batches",
    ),
    "index with stale": (
        "stale@step=1,rank=0,phase=wgrad,param=w,index=0",
        "index=0",
        "'index' does not go with pattern stale, which overwrites everything",
    ),
    "twice the same": (f"{WGRAD};{WGRAD}", WGRAD, "the same drill a second time"),
}


@pytest.mark.parametrize(("text", "marked", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_and_marked(text: str, marked: str, message: str) -> None:
    with pytest.raises(DrillError) as caught:
        parse(text)
    said, shown, marks = str(caught.value).split("\n")
    assert said == message
    assert shown == f"  {text}"
    assert marks.strip() == "^" * max(1, len(marked))
    start = marks.index("^") - 2
    assert text[start : start + len(marked)] == marked
