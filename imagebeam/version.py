"""The version of imagebeam. `setup.py` reads it from here as text."""

import re

__version__ = "0.1.0"


def advise_update(writer: object) -> str:
    """Returns what to do about a file or a state that is not known here, as a later version wrote it.

    Args:
        writer: the version that it names; anything else if it names none.
    """
    if not isinstance(writer, str) or not writer:
        return f"this is imagebeam {__version__}: update it"
    if _numbers(writer) <= _numbers(__version__):
        return f"it says that imagebeam {writer} wrote it, and this is {__version__}: it was changed; restore it"
    return f"imagebeam {writer} wrote it, and this is {__version__}: install imagebeam>={writer}"


def _numbers(version: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", version)))
