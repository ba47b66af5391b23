"""The files of deploy/, with their placeholders and settings filled in as a user does."""

from __future__ import annotations

import collections
import pathlib
import re
from collections.abc import Mapping

from imagebeam.pipelines import command_parser
from tests import command_line

DEPLOY = command_line.ROOT / "deploy"
PLACEHOLDER = re.compile(r"YOUR-[A-Z]+(?:-[A-Z]+)*")


def fill(text: str, **values: str) -> str:
    """Replaces placeholders: `BUCKET="b"` those that read YOUR-BUCKET."""
    return PLACEHOLDER.sub(lambda found: values[found[0].removeprefix("YOUR-").replace("-", "_")], text)


def set_constants(path: pathlib.Path, values: Mapping[str, object]) -> str:
    """Returns the text of a Python file whose constants at the top have these values."""
    text = path.read_text()
    for name, value in values.items():
        line = f"{name} = {value!r}"
        pattern = re.compile(rf"^{name} = (?:\[\n(?:    .*\n)*\]|.*)$", re.MULTILINE)
        text, count = pattern.subn(line.replace("\\", "\\\\"), text)
        assert count == 1, f"{path} sets {name} {count} times"
    return text


def options_of(command: str) -> set[str]:
    """Returns the options of a command of imagebeam."""
    parser = command_parser.make_parser(collections.defaultdict(lambda: lambda *_: 0))
    return {name for option in parser.commands[command].options for name in option.action.option_strings}
