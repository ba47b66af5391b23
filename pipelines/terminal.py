"""What may be shown on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` for a terminal: line breaks and control characters of file names shown, not obeyed."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
