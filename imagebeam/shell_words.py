"""Quotes words of commands that are printed to be copied into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

# In double quotes a shell changes $, `, ! (an interactive one), " and a backslash before one of these or of itself.
_CHANGED = re.compile(r"""[$`!"]|\\(?:\\|$)|\n""")


def join(words: Iterable[str]) -> str:
    """Returns words as one command for sh, bash and zsh."""
    return " ".join(map(quote, words))


def quote(word: str) -> str:
    """Returns a word as a shell takes it: in double quotes if it has single quotes, and they change nothing in it.

    shlex.quote writes '"'"' for each single quote, which nobody can read or edit.
    """
    if "'" in word and not _CHANGED.search(word):
        return f'"{word}"'
    return shlex.quote(word)
