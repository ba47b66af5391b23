"""Conclusions from the values of a column called label: whether they are classes, numbers to predict, or texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_MIN_TEXTS = 10  # values of which most are their own before they are called texts


def is_number(text: str) -> bool:
    """Returns whether a text is a number."""
    return re.fullmatch(r"\s*-?\d+(\.\d*)?([eE]-?\d+)?\s*", text) is not None


def kind_of(values: Sequence[str]) -> str:
    """Returns `label.type` of a column: class, int or float."""
    distinct = {*values}
    if not all(map(is_number, values)):
        return "class"
    if any("." in value and float(value) != int(float(value)) for value in distinct):
        return "float"
    return "int" if len(distinct) > 60 and len(distinct) * 4 > len(values) else "class"


def are_mostly_own(values: Sequence[str]) -> bool:
    """Returns whether values occur once or twice, as classes of many images do not."""
    return len(values) >= _MIN_TEXTS and len({*values}) * 2 > len(values)


def are_texts(values: Sequence[str]) -> bool:
    """Returns whether most values are words that no other row has: what is read in an image, not its class."""
    words = [each for each in values if not is_number(each)]
    return len(words) * 2 > len(values) and are_mostly_own(values)


def settings_of(column: str, values: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns settings for a column called label whose values are no classes, with a note; nothing for classes."""
    if kind_of(values) == "float":
        settings: dict[str, Any] = {"label": {"by": "column", "column": column, "type": "float"}}
        return settings, (
            f"the values of {column!r} are numbers to predict, stored as float: for classes set label.type=class",
        )
    if are_texts(values):
        settings = {"label": {"by": "none"}, "columns": {column: {"type": "string"}}}
        return settings, (f"most rows have a text of their own in {column!r}, stored as a column, and no class",)
    return {}, ()


def not_stored(columns: Sequence[str], stored: Sequence[str]) -> tuple[str, ...]:
    """Returns a note on the columns that are not among those that are stored."""
    left = [name for name in columns if name not in stored]
    return (f"its other columns are not stored unless columns names them: {', '.join(left)}",) if left else ()
