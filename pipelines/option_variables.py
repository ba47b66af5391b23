"""Options from environment variables: `--num-shards` is also `IMAGEBEAM_NUM_SHARDS`. The command line wins."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from imagebeam.pipelines.messages import terminal

PREFIX = "IMAGEBEAM_"
HELP = f"""\
Each option can also be set by an environment variable: --summary-json by
{PREFIX}SUMMARY_JSON. The command line has precedence. Flags are 1 or 0;
{PREFIX}SET has a line for each setting.
"""
OTHER_VARIABLES = frozenset({f"{PREFIX}CI", f"{PREFIX}PLAIN_C"})  # no options: of the tests, and of the code in C
_FLAGS = {"1": True, "true": True, "0": False, "false": False}
_ALIKE = 0.75  # of difflib: how near a name must be to count as misspelt
_NOT_GIVEN: Any = object()


class UsageError(SystemExit):
    """The command line or a variable is wrong; the text was printed. Exit code 2."""

    def __init__(self, message: str):
        super().__init__(2)
        self.message = message


class Option(NamedTuple):
    """An option of a parser."""

    action: argparse.Action
    kind: str  # of the action, as argparse names it: store, store_true, append, help, version

    @property
    def variable(self) -> str:
        """The name of its variable: IMAGEBEAM_SUMMARY_JSON for --summary-json."""
        longest = max(self.action.option_strings, key=len)
        return PREFIX + longest.lstrip("-").replace("-", "_").upper()


class Parser(argparse.ArgumentParser):
    """A parser that takes options that are not on the command line from environment variables.

    Attributes:
        options: all of them, with those of its groups.
        commands: the parsers of its commands, by name.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        self.options: list[Option] = []
        self.commands: Mapping[str, Parser] = {}
        super().__init__(*arguments, **settings)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        return self._noted(super().add_argument, names, settings)

    def add_argument_group(self, *arguments: Any, **settings: Any) -> Any:
        group: Any = super().add_argument_group(*arguments, **settings)
        add = group.add_argument
        group.add_argument = lambda *names, **settings: self._noted(add, names, settings)
        return group

    def _noted(self, add: Callable[..., argparse.Action], names: Any, settings: Any) -> argparse.Action:
        action = add(*names, **settings)
        if action.option_strings:
            self.options.append(Option(action, settings.get("action", "store")))
        return action

    @property
    def settable(self) -> list[Option]:
        """The options that have a variable: all but --help and --version."""
        return [each for each in self.options if each.kind not in ("help", "version")]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        given = {each: text for each in self.settable if (text := os.environ.get(each.variable))}
        defaults = {each: each.action.default for each in given}
        try:
            for each in given:
                if each.kind != "append":
                    each.action.default = _NOT_GIVEN
            found, rest = super().parse_known_args(args, namespace)
        finally:
            for each, default in defaults.items():
                each.action.default = default
        for each, text in given.items():
            name = each.action.dest
            if each.kind == "append":  # later settings override those before them
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                setattr(found, name, [*lines, *getattr(found, name)])
            elif getattr(found, name) is _NOT_GIVEN:
                setattr(found, name, self._convert(each, text))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, as argparse does, and raises UsageError."""
        self.print_usage(sys.stderr)
        print(terminal.wrap(f"{self.prog}: error: {message}", sys.stderr, 2), file=sys.stderr)
        raise UsageError(message)

    def _convert(self, option: Option, text: str) -> Any:
        try:
            return parse_value(option, text)
        except (ValueError, argparse.ArgumentTypeError) as e:
            self.error(f"environment variable {option.variable} is {text!r}: {e}")


def parse_value(option: Option, text: str) -> Any:
    """Returns the value of an option for the text of its variable.

    Raises:
        ValueError: if the option does not have such a value.
        ArgumentTypeError: the same, raised by the type of the option.
    """
    action = option.action
    if option.kind == "store_true":
        if text.strip().lower() not in _FLAGS:
            raise ValueError("a flag is 1 or true, or 0 or false")
        return _FLAGS[text.strip().lower()]
    value = action.type(text) if callable(action.type) else text
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"choose one of {', '.join(map(str, action.choices))}")
    return value


def misspelt(parsers: Iterable[Parser], environment: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Returns variables that no option has, each with the variable that was probably meant."""
    known = {each.variable.removeprefix(PREFIX) for parser in parsers for each in parser.settable}
    found = []
    for name in sorted(environment):
        short = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or short in known or name in OTHER_VARIABLES:
            continue
        near = difflib.get_close_matches(short, sorted(known), n=1, cutoff=_ALIKE)
        found += [(name, PREFIX + each) for each in near]
    return found
