"""The files of deploy/, with their placeholders and settings filled in as a user does."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

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
        text, count = re.subn(
            rf"^{name} = (?:\[\n(?:    .*\n)*\]|.*)$", lambda _: f"{name} = {value!r}", text, flags=re.MULTILINE
        )
        assert count == 1, f"{path} has {count} lines that set {name}"
    return text
