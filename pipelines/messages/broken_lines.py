"""Breaks texts for people into lines, without breaking what they may copy."""

from __future__ import annotations

import re

_BRACES = r"\{(?:[^{}\n]|\{[^{}\n]*\})*\}|\[[^\[\]\n]*\]"
# A quote after a letter is an apostrophe.
_WORD = rf"""(?:(?<!\w)"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w)|{_BRACES}|\S)+"""
_OPTION = rf"--[a-z][\w-]*(?:[ =]{_WORD})?"
_OPTIONS = rf"{_OPTION}(?: {_OPTION})*"
_COMMAND = rf"(?:imagebeam|pip install) {_WORD}(?: (?!--){_WORD})?(?: {_OPTIONS})?"
_SETTING = rf"[a-z_]+(?:\.[a-z_]+)+: {_WORD}"  # a key of a config with its value
_WHOLE = re.compile(rf"(?:{_COMMAND}|{_OPTIONS}|{_SETTING}|{_WORD})(?!\S)")


def break_lines(text: str, columns: int) -> list[str]:
    """Returns the lines of a text.

    Lines end at blanks, but not in quotes and braces, nor in a command or its options: a line break in them would run a
    part of a command that is copied from the screen. What is longer than a line gets one of its own.

    Args:
        text: without line breaks.
        columns: that a line may have.
    """
    lines: list[str] = []
    for match in _WHOLE.finditer(text):
        if lines and len(lines[-1]) + 1 + len(match[0]) <= columns:
            lines[-1] += f" {match[0]}"
        else:
            lines.append(match[0])
    return lines
