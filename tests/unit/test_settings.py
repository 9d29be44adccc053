"""Every option: what it takes from a flag and from the environment, who wins, and what a mistake is answered with."""

from __future__ import annotations

import argparse
import dataclasses
import pickle
from typing import Any

import pytest

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.settings import (
    OPTIONS,
    Settings,
    add_arguments,
    flag_of,
    from_namespace,
    variable_of,
    without_ours,
)

DRILL = "nan@step=3,rank=5,phase=backward,module=decoder.layers.3.mlp"

# option, text, what becomes of it
GOOD = [
    ("dir", "/data/run 7", "/data/run 7"),
    ("on_nonfinite", "abort", "abort"),
    ("on_nonfinite", "skip", "skip"),
    ("on_nonfinite", "continue", "continue"),
    ("max_skips", "1/1", (1, 1)),
    ("max_skips", "3/1000", (3, 1000)),
    ("deadline", "1", 1.0),
    ("deadline", "2.5", 2.5),
    ("deadline", "86400", 86400.0),
    ("norms", "param", "param"),
    ("norms", "bucket", "bucket"),
    ("replay", "auto", "auto"),
    ("replay", "off", "off"),
    ("scaler_skips", "1", 1),
    ("scaler_skips", "20", 20),
    ("capture", "none", "none"),
    *(("capture", level, level) for level in ("ids", "op", "step", "full")),
    ("drill", DRILL, DRILL),
    ("watch", r"mlp\.activation$", r"mlp\.activation$"),
]

# option, text, the complaint after the name of the flag or variable
BAD = [
    ("dir", "", "an empty path; give a directory or leave the option out"),
    ("dir", "  ", "an empty path; give a directory or leave the option out"),
    ("on_nonfinite", "ignore", "'ignore' is not one of abort, skip, continue"),
    ("on_nonfinite", "Skip", "'Skip' is not one of abort, skip, continue"),
    ("max_skips", "5", "'5' is not N/M with 1 <= N <= M, for example 5/100"),
    ("max_skips", "0/5", "'0/5' is not N/M with 1 <= N <= M, for example 5/100"),
    ("max_skips", "6/5", "'6/5' is not N/M with 1 <= N <= M, for example 5/100"),
    ("max_skips", "-1/5", "'-1/5' is not N/M with 1 <= N <= M, for example 5/100"),
    ("deadline", "soon", "'soon' is not a number of seconds between 1 and 86400"),
    ("deadline", "0.5", "'0.5' is not a number of seconds between 1 and 86400"),
    ("deadline", "nan", "'nan' is not a number of seconds between 1 and 86400"),
    ("deadline", "inf", "'inf' is not a number of seconds between 1 and 86400"),
    ("norms", "all", "'all' is not one of param, bucket"),
    ("replay", "on", "'on' is not one of auto, off"),
    ("scaler_skips", "0", "'0' is not a whole number of at least 1"),
    ("scaler_skips", "2.0", "'2.0' is not a whole number of at least 1"),
    ("scaler_skips", "-3", "'-3' is not a whole number of at least 1"),
    ("scaler_skips", "", "'' is not a whole number of at least 1"),
    ("capture", "all", "'all' is not one of none, ids, op, step, full"),
    ("drill", "", "an empty drill; plant one or leave the option out"),
    ("watch", "mlp(", "'mlp(' is not a regular expression: missing ), unterminated subpattern at position 3"),
    ("watch", "", "an empty expression; '.' watches every module"),
    ("watch_steps", "3", "'3' is not A:B with 1 <= A <= B, both steps included, for example 120:125"),
    ("watch_steps", "0:3", "'0:3' is not A:B with 1 <= A <= B, both steps included, for example 120:125"),
    ("watch_steps", "4:3", "'4:3' is not A:B with 1 <= A <= B, both steps included, for example 120:125"),
    ("watch_above", "big", "'big' is not a finite number above 0, for example 1e4"),
    ("watch_above", "0", "'0' is not a finite number above 0, for example 1e4"),
    ("watch_above", "-1", "'-1' is not a finite number above 0, for example 1e4"),
    ("watch_above", "nan", "'nan' is not a finite number above 0, for example 1e4"),
    ("watch_above", "inf", "'inf' is not a finite number above 0, for example 1e4"),
]


def read(*arguments: str, **environ: str) -> Settings:
    """Settings of a command line and an environment, through a real parser."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return from_namespace(parser.parse_args(arguments), environ)


def test_the_options_are_these_and_no_others() -> None:
    frozen = [
        ("--nanguard-dir", "NANGUARD_DIR", None),
        ("--nanguard-on-nonfinite", "NANGUARD_ON_NONFINITE", "abort"),
        ("--nanguard-max-skips", "NANGUARD_MAX_SKIPS", (5, 100)),
        ("--nanguard-deadline", "NANGUARD_DEADLINE", 120.0),
        ("--nanguard-strict", "NANGUARD_STRICT", False),
        ("--nanguard-norms", "NANGUARD_NORMS", "param"),
        ("--nanguard-replay", "NANGUARD_REPLAY", "auto"),
        ("--nanguard-scaler-skips", "NANGUARD_SCALER_SKIPS", 8),
        ("--nanguard-capture", "NANGUARD_CAPTURE", "op"),
        ("--nanguard-drill", "NANGUARD_DRILL", None),
        ("--nanguard-watch", "NANGUARD_WATCH", None),
        ("--nanguard-watch-steps", "NANGUARD_WATCH_STEPS", None),
        ("--nanguard-watch-above", "NANGUARD_WATCH_ABOVE", None),
    ]
    assert [(flag_of(o.name), variable_of(o.name), o.default) for o in OPTIONS] == frozen


def test_the_parser_has_the_switch_and_every_option_and_nothing_else() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    found = [action.option_strings for action in parser._actions]
    assert found == [["--nanguard"], *([flag_of(option.name)] for option in OPTIONS)]


def test_without_flag_and_variable_the_guard_is_off() -> None:
    assert read() == Settings(
        on=False,
        dir=None,
        on_nonfinite="abort",
        max_skips=(5, 100),
        deadline=120.0,
        strict=False,
        norms="param",
        replay="auto",
        scaler_skips=8,
        capture="op",
        drill=None,
        watch=None,
        watch_steps=None,
        watch_above=None,
    )


@pytest.mark.parametrize(("option", "text", "value"), GOOD)
def test_a_value_is_read_alike_from_flag_and_environment(option: str, text: str, value: Any) -> None:
    expected = dataclasses.replace(Settings(on=True), **{option: value})
    assert read("--nanguard", flag_of(option), text) == expected
    assert read("--nanguard", **{variable_of(option): text}) == expected


@pytest.mark.parametrize(("option", "text", "complaint"), BAD)
def test_a_bad_value_names_where_it_came_from_and_what_is_allowed(option: str, text: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read("--nanguard", f"{flag_of(option)}={text}")
    assert str(caught.value) == f"{flag_of(option)}: {complaint}"
    with pytest.raises(SettingsError) as caught:
        read("--nanguard", **{variable_of(option): text})
    assert str(caught.value) == f"{variable_of(option)}: {complaint}"


def test_strict_is_a_flag_and_a_variable_of_0_or_1() -> None:
    assert read("--nanguard", "--nanguard-strict").strict
    assert read("--nanguard", NANGUARD_STRICT="1").strict
    assert not read("--nanguard", NANGUARD_STRICT="0").strict
    with pytest.raises(SettingsError, match=r"^NANGUARD_STRICT: 'yes' is not 0 or 1$"):
        read("--nanguard", NANGUARD_STRICT="yes")


def test_the_command_line_beats_the_environment() -> None:
    seen = read("--nanguard", "--nanguard-on-nonfinite", "skip", "--nanguard-strict",
                NANGUARD_ON_NONFINITE="continue", NANGUARD_STRICT="0", NANGUARD_NORMS="bucket")  # fmt: skip
    assert (seen.on_nonfinite, seen.strict, seen.norms) == ("skip", True, "bucket")


def test_a_variable_that_the_command_line_beats_is_not_judged() -> None:
    assert read("--nanguard", "--nanguard-norms", "bucket", NANGUARD_NORMS="nonsense").norms == "bucket"


@pytest.mark.parametrize(
    ("arguments", "switch", "is_on"),
    [
        ([], None, False),
        ([], "", False),
        ([], "0", False),
        ([], "1", True),
        (["--nanguard"], None, True),
        (["--nanguard"], "", True),
        (["--nanguard"], "1", True),
        (["--nanguard"], "0", False),
    ],
)
def test_nanguard_0_beats_the_flag_and_1_replaces_it(arguments: list[str], switch: str | None, is_on: bool) -> None:
    environ = {} if switch is None else {"NANGUARD": switch}
    assert read(*arguments, **environ).on is is_on


def test_a_switch_that_is_neither_0_nor_1_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^NANGUARD: 'on' is not 0 or 1$"):
        read("--nanguard", NANGUARD="on")


def test_a_drill_under_policy_continue_is_a_contradiction() -> None:
    with pytest.raises(SettingsError) as caught:
        read("--nanguard", "--nanguard-drill", DRILL, NANGUARD_ON_NONFINITE="continue")
    assert str(caught.value) == (
        "--nanguard-drill with --nanguard-on-nonfinite continue trains on a planted fault; use abort or skip"
    )
    assert read("--nanguard", "--nanguard-drill", DRILL, "--nanguard-on-nonfinite", "skip").drill == DRILL


def test_a_drill_without_the_guard_is_a_contradiction_unless_the_guard_was_switched_off() -> None:
    with pytest.raises(SettingsError, match=r"^--nanguard-drill needs --nanguard$"):
        read("--nanguard-drill", DRILL)
    assert not read("--nanguard", "--nanguard-drill", DRILL, NANGUARD="0").on


def test_a_watch_without_the_guard_is_a_contradiction() -> None:
    with pytest.raises(SettingsError, match=r"^--nanguard-watch needs --nanguard$"):
        read("--nanguard-watch", "mlp")
    assert not read("--nanguard-watch", "mlp", NANGUARD="0").on


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [("watch_steps", "3:5", (3, 5)), ("watch_steps", "7:7", (7, 7)), ("watch_above", "1e4", 1e4)],
)
def test_what_narrows_a_watch_needs_one(option: str, text: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        read("--nanguard", flag_of(option), text)
    assert str(caught.value) == f"{flag_of(option)} needs --nanguard-watch"
    watching = read("--nanguard", "--nanguard-watch", "mlp", flag_of(option), text)
    assert getattr(watching, option) == value
    assert read("--nanguard", NANGUARD_WATCH="mlp", **{variable_of(option): text}) == watching


@pytest.mark.parametrize("level", ["step", "full"])
def test_a_step_is_captured_only_where_its_data_is_kept(level: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read("--nanguard", "--nanguard-capture", level, "--nanguard-replay", "off")
    assert str(caught.value) == (
        f"--nanguard-capture {level} needs --nanguard-replay auto, for which the step's data is kept"
    )
    assert read("--nanguard", "--nanguard-replay", "off").capture == "op"


def test_a_command_line_without_ours_is_the_hosts() -> None:
    words = ["train.py", "--lr", "1", "--nanguard", "--nanguard-drill", DRILL, "--nanguard-strict", "--bf16"]
    assert without_ours([*words, f"--nanguard-drill={DRILL}"]) == ["train.py", "--lr", "1", "--bf16"]


def test_settings_errors_are_value_errors_too() -> None:
    with pytest.raises(ValueError, match="--nanguard-norms"):
        read("--nanguard", "--nanguard-norms", "x")


def test_digests_are_equal_exactly_if_all_options_are() -> None:
    base = Settings(on=True)
    changed = [
        dataclasses.replace(base, **{option: value})
        for option, value in {
            "on": False,
            "dir": "/elsewhere",
            "on_nonfinite": "skip",
            "max_skips": (5, 101),
            "deadline": 121.0,
            "strict": True,
            "norms": "bucket",
            "replay": "off",
            "scaler_skips": 9,
            "capture": "none",
            "drill": DRILL,
            "watch": "mlp",
            "watch_steps": (3, 5),
            "watch_above": 1e4,
        }.items()
    ]
    assert len(changed) == len(dataclasses.fields(Settings))
    digests = {settings.digest() for settings in (base, *changed)}
    assert len(digests) == 1 + len(changed)
    assert base.digest() == Settings(on=True).digest()
    assert {len(digest) for digest in digests} == {12}


def test_parsed_options_are_texts_that_a_checkpoint_can_hold_without_us() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    namespace = parser.parse_args(["--nanguard", "--nanguard-max-skips", "3/50"])
    assert namespace.nanguard_max_skips == "3/50"
    assert b"megatron_nanguard" not in pickle.dumps(namespace)


def test_a_namespace_of_a_parser_without_our_options_leaves_the_environment() -> None:
    settings = from_namespace(argparse.Namespace(lr=1.0), {"NANGUARD": "1", "NANGUARD_SCALER_SKIPS": "3"})
    assert settings == Settings(on=True, scaler_skips=3)


@pytest.mark.parametrize("option", ["scaler_skips", "max_skips", "watch_steps", "deadline", "watch_above"])
def test_a_number_of_thousands_of_digits_is_refused_in_a_line(option: str) -> None:
    digits = "9" * 5000
    text = {"max_skips": f"1/{digits}", "watch_steps": f"1:{digits}"}.get(option, digits)
    with pytest.raises(SettingsError) as caught:
        read("--nanguard", "--nanguard-watch=.", f"{flag_of(option)}={text}")
    assert str(caught.value).startswith(f"{flag_of(option)}: '")
    assert "characters) is not " in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "hint"),
    [("NANGUARD_DEADLNE", "NANGUARD_DEADLINE is meant?"), ("NANGUARD_XYZZY_Q", "there are NANGUARD, NANGUARD_DIR, ")],
)
def test_a_misspelt_variable_is_named_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_texts(True, {}, {name: "3"})
    assert str(caught.value).startswith(f"{name} in the environment is no variable of nanguard; {hint}")


@pytest.mark.parametrize("environ", [{"NANGUARD": "0"}, {}])
def test_switched_off_a_variable_of_another_tool_is_left_alone(environ: dict[str, str]) -> None:
    assert not Settings.from_texts(False, {}, {**environ, "NANGUARD_XYZ": "3"}).on


def test_variables_of_reports_and_tests_are_known() -> None:
    assert Settings.from_texts(True, {}, {"NANGUARD_LANG": "zh", "NANGUARD_TEST_INCIDENT": "x", "OTHER": "1"}).on
