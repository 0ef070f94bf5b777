"""Test options of all commands: each name has one meaning, one syntax, and one line of help."""

import argparse
import importlib
import re
from collections import Counter
from typing import Any

import pytest

from cute_gemm.commands import cli, output


def parsers() -> dict[str, argparse.ArgumentParser]:
    _, commands = cli.parsers()
    for name, parser in commands.items():
        importlib.import_module(f"cute_gemm.commands.{name}").add_arguments(parser)
    return commands


COMMANDS = parsers()
OPTIONS = sorted({x for parser in COMMANDS.values() for x in parser._option_string_actions})


def meaning(action: argparse.Action) -> tuple[Any, ...]:
    """Return the syntax of an option, and its help without details and defaults."""
    head = re.split(r"[:;(]", str(action.help), maxsplit=1)[0].strip()
    return type(action).__name__, action.metavar, action.type, action.nargs, action.choices, head


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_the_same_in_every_command(option: str) -> None:
    actions = {
        name: parser._option_string_actions[option]
        for name, parser in COMMANDS.items()
        if option in parser._option_string_actions
    }
    found = {name: meaning(action) for name, action in actions.items()}
    assert len(set(found.values())) == 1, found
    assert len({tuple(action.option_strings) for action in actions.values()}) == 1


@pytest.mark.parametrize("option", OPTIONS)
def test_no_option_is_the_plural_of_another(option: str) -> None:
    """Test names of options with several values, which are singular: ``--kernel naive,auto``."""
    assert option.rstrip("s") == option or option.removesuffix("s") not in OPTIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_stands_once_in_a_help(name: str) -> None:
    text = COMMANDS[name].format_help()
    lines = re.findall(r"^  (?:-\w(?: \w+)?, )?(-[-\w]+)", text, re.MULTILINE)
    twice = [option for option, count in Counter(lines).items() if count > 1]
    assert not twice and len(lines) > 1, twice


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_by_the_same_flag(name: str) -> None:
    assert COMMANDS[name].get_default("json") is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench NN --kernels naive", "did you mean --kernel?"),
        ("calibrate --dtypes float32", "--dtype"),
        ("compile --for NN --dtypes float32", "did you mean --dtype?"),
        ("emit NN --ptx", "--ptx"),
        ("rn NN", "command 'rn' is not known; did you mean run?"),
        ("frobnicate NN", "command 'frobnicate' is not known; expected one of run, analyze,"),
        ("emit NN -o .", "--output '.' is a directory; expected --output FILE"),
        ("bench NN --size 64", "did you mean --sizes?"),
        ("tune NN --sizes 64 -m 32", "--sizes came with -m, which it replaces: omit one"),
    ],
)
def test_a_spelling_that_is_not_known(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(words.split())
    err = capsys.readouterr().err
    assert status == 2 and said in err and err.count("\n") == 1


def test_long_work_prints_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with output.progress() as tell:
        for done in range(145):
            tell("kernels compiled", done, 144)
            now[0] += 1.5
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and lines[0] == "kernels compiled: 2 of 144, about 4 min left"
    assert lines[-1] == "kernels compiled: 142 of 144, about 3 s left" and len(lines) == 21
    with output.progress() as tell:  # nothing is done yet
        tell("CTAs executed", 0, 10)
        now[0] += 3
        tell("CTAs executed", 0, 10)
    assert capsys.readouterr().err == "CTAs executed: 0 of 10\n"
    with output.progress() as tell:  # a short task prints nothing
        tell("kernels compiled", 0, 2)
        tell("kernels compiled", 2, 2)
    assert capsys.readouterr().err == ""
