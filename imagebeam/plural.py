"""Parts of messages: counts with nouns, sizes with units, the first names of lists, commands to copy into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

# In double quotes a shell changes $, `, ! (an interactive one), " and a backslash before one of these or of itself.
_CHANGED = re.compile(r"""[$`!"]|\\(?:\\|$)|\n""")


def count(number: int, noun: str) -> str:
    """Returns a count with its noun: `1 shard`, `1,024 shards`, `2 classes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"


def name_some(names: Sequence[str], most: int = 5) -> str:
    """Returns the first names of a list: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def format_bytes(num_bytes: float) -> str:
    """Returns a size such as `107.1 MB`, in decimal units, as disks are sold and buckets billed."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError


def shell_command(words: Iterable[str]) -> str:
    """Returns words as one command for sh, bash and zsh."""
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    """Returns a word as a shell takes it: in double quotes if it has single quotes, and they change nothing in it.

    shlex.quote writes '"'"' for each single quote, which nobody can read or edit.
    """
    if "'" in word and not _CHANGED.search(word):
        return f'"{word}"'
    return shlex.quote(word)
