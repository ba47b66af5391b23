"""Options from environment variables."""

from __future__ import annotations

import argparse
import collections
from typing import Any

import pytest

from imagebeam.pipelines import command_parser
from tests import case_tables

ACTIONS = collections.defaultdict(lambda: lambda *_: 0)
COMMANDS = tuple(command_parser.make_parser(ACTIONS).commands)
POSITIONAL = {name: ["DIR"] for name in COMMANDS if name not in ("convert", "plan", "schema")}


def parser_of(command: str) -> command_parser.Parser:
    return command_parser.make_parser(ACTIONS).commands[command]


def parse(*arguments: str) -> tuple[argparse.Namespace, list[str]]:
    return command_parser.make_parser(ACTIONS).parse_known_args(arguments)


def sample(option: command_parser.Option) -> tuple[str, Any]:
    """A text for an option, and the value that it means."""
    action = option.action
    if option.kind == "store_true":
        return "true", True
    if action.choices is not None:
        last = list(action.choices)[-1]
        return str(last), last
    value: Any = "3" if action.type is None else action.type("3")  # type: ignore[operator]
    return "3", [value] if option.kind == "append" else value


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_variable_with_its_name(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = parser_of(command).settable
    assert options
    for option in options:
        text, value = sample(option)
        longest = max(option.action.option_strings, key=len)
        name = f"IMAGEBEAM_{longest.lstrip('-').replace('-', '_').upper()}"
        with monkeypatch.context() as patch:
            patch.setenv(name, text)
            known, rest = parse(command, *POSITIONAL.get(command, []))
        assert (getattr(known, option.action.dest), rest) == (value, []), name


def test_no_two_options_of_a_command_share_a_variable() -> None:
    for command in COMMANDS:
        names = collections.Counter(each.variable for each in parser_of(command).settable)
        assert max(names.values()) == 1


def test_command_line_precedes_the_environment_and_this_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBEAM_BATCH_SIZE", "64")
    assert parse("bench", "DIR")[0].batch_size == 64
    assert parse("bench", "DIR", "--batch-size", "32")[0].batch_size == 32
    monkeypatch.delenv("IMAGEBEAM_BATCH_SIZE")
    assert parse("bench", "DIR")[0].batch_size == 128


def test_bad_variable_does_not_matter_where_the_command_line_has_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBEAM_WORKERS", "many")
    assert parse("convert", "--workers", "2")[0].workers == 2


def test_settings_of_the_environment_come_before_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBEAM_SET", "split.by=hash\n  split.fractions={train: 0.8, test: 0.2}\n\n")
    expected = ["split.by=hash", "split.fractions={train: 0.8, test: 0.2}"]
    assert parse("convert")[0].set == expected
    assert parse("convert", "--set", "split.by=none")[0].set == [*expected, "split.by=none"]
    assert parse("convert")[0].set == expected


@case_tables.each_case("text, value", [("1", True), ("true", True), ("0", False), ("False", False), ("", False)])
def test_flag_is_1_or_0_or_true_or_false(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBEAM_OVERWRITE", text)
    assert parse("convert")[0].overwrite is value


@case_tables.each_case(
    "command, name, text, message",
    [
        ("convert", "OVERWRITE", "yes", "'yes': a flag is 1 or true, or 0 or false"),
        ("convert", "WORKERS", "0", "'0': '0' is not a positive number"),
        ("convert", "LOG_FORMAT", "xml", "'xml': choose one of text, json"),
        ("index", "LABEL_BASE", "x", "'x': invalid literal for int"),
        ("bench", "SECONDS", "5s", "'5s': '5s' is not a positive number of seconds"),
    ],
)
def test_bad_value_names_its_variable(
    command: str,
    name: str,
    text: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"IMAGEBEAM_{name}", text)
    with pytest.raises(command_parser.UsageError) as caught:
        parse(command, *POSITIONAL.get(command, []))
    assert caught.value.code == 2
    assert f"environment variable IMAGEBEAM_{name} is {message}" in capsys.readouterr().err


def test_variable_of_another_command_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBEAM_BATCH_SIZE", "no number")
    assert not hasattr(parse("verify", "DIR")[0], "batch_size")


@case_tables.each_case(
    "name, meant",
    [
        ("IMAGEBEAM_INPT", "IMAGEBEAM_INPUT"),
        ("IMAGEBEAM_SUMARY_JSON", "IMAGEBEAM_SUMMARY_JSON"),
        ("IMAGEBEAM_CI", None),
        ("IMAGEBEAM_PLAIN_C", None),
        ("IMAGEBEAM_INPUT", None),
        ("IMAGEBEAM_HOME", None),
        ("IMAGEBEAM_VERSION", None),
        ("INPT", None),
    ],
)
def test_misspelt_variable_is_found_with_the_nearest_name(name: str, meant: str | None) -> None:
    parsers = [parser_of(command) for command in COMMANDS]
    assert list(command_parser.misspelt(parsers, {name: "1"})) == ([] if meant is None else [(name, meant)])


def test_help_says_once_that_options_are_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    assert capsys.readouterr().out.count("environment variable") == 1


@case_tables.each_case(
    "arguments, variables, expected",
    [
        (["convert"], {}, ("convert", None, "text", False)),
        (["convert", "--bogus", "--summary-json=s", "--workers", "x"], {}, ("convert", "s", "text", False)),
        (["plan", "-v", "--log-format", "json"], {"SUMMARY_JSON": "s", "VERBOSE": "1"}, ("plan", "s", "json", True)),
        (["verify", "DIR"], {"LOG_FORMAT": "json", "VERBOSE": "0"}, ("verify", None, "json", False)),
        (["convert", "--log-format", "xml"], {"SUMMARY_JSON": "s"}, ("convert", "s", "xml", False)),
        (["convert", "--summary-json"], {}, ("convert", None, "text", False)),
        (["bench", "--summary-json", "s"], {}, ("", None, "text", False)),
        ([], {}, ("", None, "text", False)),
    ],
)
def test_outputs_are_found_before_the_arguments_are_parsed(
    arguments: list[str],
    variables: dict[str, str],
    expected: tuple[str, str | None, str, bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(f"IMAGEBEAM_{name}", text)
    found = command_parser.find_outputs(arguments)
    assert (found.command, found.summary_json, found.log_format, found.verbose) == expected
    assert capsys.readouterr() == ("", "")
