"""The blocks of code of a page of docs/, and its snippets, run as they are printed there."""

from __future__ import annotations

import re
from typing import Any

from tests import command_line


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of code in one language, in their order."""
    text = (command_line.ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_snippet(block: str) -> dict[str, Any]:
    """Runs a block of Python in this process, in the working folder; returns its names."""
    names: dict[str, Any] = {"__name__": "__snippet__"}
    exec(compile(block, "snippet", "exec"), names)
    return names
