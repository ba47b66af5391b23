"""Options from environment variables: `--num-shards` is also `IMAGEBEAM_NUM_SHARDS`. The command line wins."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from imagebeam.pipelines.messages import terminal

PREFIX = "IMAGEBEAM_"
HELP = f"""\
Each option can also be set by an environment variable: --summary-json by
{PREFIX}SUMMARY_JSON. The command line has precedence. Flags are 1 or 0;
{PREFIX}SET has a line for each setting.
"""
OTHER_VARIABLES = frozenset({f"{PREFIX}CI", f"{PREFIX}NO_AVX2"})  # no options: of the tests, and of the decoder in C
_FLAGS = {"1": True, "true": True, "0": False, "false": False}
_ALIKE = 0.75  # of difflib: how near a name must be to count as misspelt
_NOT_GIVEN: Any = object()


class UsageError(SystemExit):
    """The command line or a variable is wrong; the text was printed. Exit code 2."""

    def __init__(self, message: str):
        super().__init__(2)
        self.message = message


class Parser(argparse.ArgumentParser):
    """A parser that takes options that are not on the command line from environment variables."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        given = {action: text for action in settable(self) if (text := os.environ.get(variable_of(action)))}
        defaults = {action: action.default for action in given}
        try:
            for action in given:
                if not isinstance(action, argparse._AppendAction):
                    action.default = _NOT_GIVEN
            found, rest = super().parse_known_args(args, namespace)
        finally:
            for action, default in defaults.items():
                action.default = default
        for action, text in given.items():
            if isinstance(action, argparse._AppendAction):  # later settings override those before them
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                setattr(found, action.dest, [*lines, *getattr(found, action.dest)])
            elif getattr(found, action.dest) is _NOT_GIVEN:
                setattr(found, action.dest, self._convert(action, text))
        return found, rest

    def _get_formatter(self) -> argparse.HelpFormatter:
        """Returns what writes the help; argparse makes one for each option that is added, a third of the time."""
        formatter_class: Any = self.formatter_class
        return formatter_class(prog=self.prog, width=self._help_width)

    @functools.cached_property
    def _help_width(self) -> int:
        return shutil.get_terminal_size().columns - 2  # as in argparse

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, as argparse does, and raises UsageError."""
        self.print_usage(sys.stderr)
        print(terminal.wrap(f"{self.prog}: error: {message}", sys.stderr, 2), file=sys.stderr)
        raise UsageError(message)

    def _convert(self, action: argparse.Action, text: str) -> Any:
        try:
            return parse_value(action, text)
        except (ValueError, argparse.ArgumentTypeError) as e:
            self.error(f"environment variable {variable_of(action)} is {text!r}: {e}")


def parse_value(action: argparse.Action, text: str) -> Any:
    """Returns the value of an option for the text of its variable.

    Raises:
        ValueError: if the option does not have such a value.
        ArgumentTypeError: the same, raised by the type of the option.
    """
    if isinstance(action, argparse._StoreTrueAction):
        if text.strip().lower() not in _FLAGS:
            raise ValueError("a flag is 1 or true, or 0 or false")
        return _FLAGS[text.strip().lower()]
    value = action.type(text) if callable(action.type) else text
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"choose one of {', '.join(map(str, action.choices))}")
    return value


def settable(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options of a parser that have a variable: all but --help and --version."""
    for action in parser._actions:
        ends = isinstance(action, (argparse._HelpAction, argparse._VersionAction))
        if action.option_strings and not ends:
            yield action


def variable_of(action: argparse.Action) -> str:
    """Returns the name of the variable of an option: IMAGEBEAM_SUMMARY_JSON for --summary-json."""
    longest = max(action.option_strings, key=len)
    return PREFIX + longest.lstrip("-").replace("-", "_").upper()


def misspelt(parsers: Iterable[argparse.ArgumentParser], environment: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Returns variables that no option has, each with the variable that was probably meant."""
    known = {variable_of(action).removeprefix(PREFIX) for parser in parsers for action in settable(parser)}
    found = []
    for name in sorted(environment):
        short = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or short in known or name in OTHER_VARIABLES:
            continue
        near = difflib.get_close_matches(short, sorted(known), n=1, cutoff=_ALIKE)
        found += [(name, PREFIX + each) for each in near]
    return found
