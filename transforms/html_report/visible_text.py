"""Shows texts that may hold anything, such as names of files, on one line of a page."""

from __future__ import annotations

import unicodedata

MAX_CHARS = 80  # of a text in a table or under a picture
_ESCAPED = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))  # invisible, or changes the order of other characters
_JOINERS = "\u200c\u200d"  # of scripts and emoji
_FIRST_SURROGATE, _BYTE = 0xDC80, 0xFF  # of a byte that is no UTF-8, as Python decodes names of files


def decode(value: bytes) -> str:
    """Returns the text in a feature; bytes that are no UTF-8 become lone surrogates, which `visible` shows by code."""
    return value.decode("utf-8", "surrogateescape")


def visible(value: object) -> str:
    """Returns a text in which characters that cannot be seen, or that would reorder others, are shown by their code."""
    return "".join(map(_visible, str(value)))


def shorten(value: object, max_chars: int = MAX_CHARS) -> str:
    """Returns a text cut to `max_chars`. It keeps the beginning and the end: names often differ in the end."""
    text = str(value)
    if len(text) <= max_chars:
        return text
    end = max_chars // 3
    return f"{text[: max_chars - end - 1]}…{text[-end:]}"


def _visible(char: str) -> str:
    if char.isascii() and char.isprintable():
        return char
    if unicodedata.category(char) not in _ESCAPED or char in _JOINERS:
        return char
    code = ord(char)
    if _FIRST_SURROGATE <= code < _FIRST_SURROGATE + 0x80:
        return f"\\x{code & _BYTE:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
