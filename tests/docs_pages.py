"""The commands and snippets of a page of docs/, run as they are printed there."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

from tests import command_line


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of code in one language, in their order."""
    text = (command_line.ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_command(block: str, folder: pathlib.Path, replace: Mapping[str, str] = {}) -> command_line.Completed:
    """Runs the `imagebeam` command of a block in `folder`, with arguments replaced by `replace`; expects success."""
    program, *arguments = shlex.split(block.replace("\\\n", " "))
    assert program == "imagebeam"
    completed = command_line.run(*(replace.get(each, each) for each in arguments), cwd=folder)
    assert completed.returncode == 0, completed.stderr
    return completed


def run_snippet(block: str) -> dict[str, Any]:
    """Runs a block of Python in this process, in the working folder; returns its names."""
    names: dict[str, Any] = {"__name__": "__snippet__"}
    exec(compile(block, "snippet", "exec"), names)
    return names
