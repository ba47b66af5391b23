"""What the rows of a table, of whatever format, become: references with key, label, split, group and columns."""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from imagebeam import features
from imagebeam.transforms import elements

_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+(\.0+)?", re.ASCII)  # 3.0 is how pandas writes the integer 3 beside a missing one
_FLOAT32_LIMIT = 2.0**128 - 2.0**103  # rounds to infinity in 32 bits, as all above it
_FLOAT32_NOTHING = 2.0**-150  # rounds to zero in 32 bits, as all below it
_SMALLEST_FLOAT = 2.0**-126  # in 32 bits; TensorFlow takes smaller ones for zero
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "-1": False}


class BadRowError(ValueError):
    """A row that names no usable image; becomes a reject."""

    def __init__(self, reason: elements.Reason, detail: str):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class MissingValueError(ValueError):
    """A row without a value that must be there; ends the run."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column whose values become a feature."""

    name: str
    kind: str  # bytes, int64 or float
    many: bool = False
    separator: str | None = None  # between the values of many, in text
    missing: str = "reject"  # or "error", or "default"
    default: Any = None
    positive: bool = False  # whether zero and less, which have no logarithm, are no values


@dataclasses.dataclass(frozen=True)
class RowFields:
    """Which cells of a row count, beside that with the image."""

    key: str | None = None
    label: str | None = None
    label_separator: str | None = None  # between several classes of one image
    label_flags: tuple[str, ...] = ()  # columns of 0 and 1, each a class
    split: str | None = None
    group: str | None = None
    columns: tuple[Column, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the columns that must be there."""
        single = (self.key, self.label, self.split, self.group)
        names = (*single, *self.label_flags, *(column.name for column in self.columns))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the columns whose text is stored or names something."""
        single = (self.label, self.split, self.group)
        names = (*single, *(column.name for column in self.columns if column.kind == features.BYTES))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def separators(self) -> dict[str, str | None]:
        """The columns with many values, and what stands between those in a text."""
        many = {column.name: column.separator for column in self.columns if column.many}
        if self.label is not None and self.label_separator is not None:
            many[self.label] = self.label_separator
        return many

    def fill(self, ref: elements.ImageRef, cells: Mapping[str, Any]) -> elements.ImageRef:
        """`ref` with what the cells say: its label, split and group where they are columns, and the columns' values.

        Raises:
            BadRowError: if a value cannot be understood.
            MissingValueError: the same, where the config has it end the run.
        """
        return ref._replace(
            label=self._label(cells) if self.label or self.label_flags else ref.label,
            split=(text_in(cells, self.split) or "").strip() if self.split else ref.split,
            group=(text_in(cells, self.group) or "").strip() if self.group else ref.group,
            columns=(*ref.columns, *(parse_column(column, cells.get(column.name)) for column in self.columns)),
        )

    def _label(self, cells: Mapping[str, Any]) -> str | tuple[str, ...] | None:
        if self.label_flags:
            return tuple(name for name in self.label_flags if _parse_flag(name, text_in(cells, name)))
        if self.label_separator is None:
            if isinstance(cells.get(str(self.label)), (list, tuple)):
                hint = "for several classes of an image set label.separator"
                raise BadRowError(elements.Reason.BAD_VALUE, f"column {self.label!r} holds a list; {hint}")
            return (text_in(cells, str(self.label)) or "").strip() or None
        values = values_of(cells.get(str(self.label)), self.label_separator)
        labels = [(text_of(value) or "").strip() for value in values]
        return tuple(dict.fromkeys(filter(None, labels)))


NO_FIELDS = RowFields()


def parse_column(column: Column, value: Any) -> Any:
    """The value of a column as bytes, int or float; a tuple of them where it has many.

    Raises:
        BadRowError: if it cannot be read so, or is missing.
        MissingValueError: the same, where the config has it end the run.
    """
    try:
        if column.many:
            return tuple(_parse(column.kind, text) for text in _texts_of(column, value))
        text = text_of(value)
        if text is None:
            raise ValueError("is empty")
        value = _parse(column.kind, text)
        if column.positive and value < _SMALLEST_FLOAT:
            raise ValueError(f"{text!r} has no logarithm; transform: log needs values above 0")
        return value
    except ValueError as e:
        if column.missing == "default":
            return _parse(column.kind, str(column.default))
        detail = f"column {column.name!r}: {e}" if str(e) != "is empty" else f"column {column.name!r} is empty"
        if not column.many and isinstance(value, (list, tuple)):
            detail += f"; for a list set columns.{column.name}.list: true"
        if column.missing == "error":
            raise MissingValueError(
                f"{detail}, and columns.{column.name}.missing is error: mend it, or set reject or default"
            ) from e
        raise BadRowError(elements.Reason.BAD_VALUE, detail) from e


def _parse(kind: str, text: str) -> bytes | int | float:
    return text.encode("utf-8", "surrogateescape") if kind == features.BYTES else parse_number(kind, text)


def _parse_flag(name: str, cell: str | None) -> bool:
    text = (cell or "").strip().lower()
    if text not in _FLAGS:
        raise BadRowError(elements.Reason.BAD_VALUE, f"column {name!r}: {text!r} is neither 1 (true) nor 0 (false, -1)")
    return _FLAGS[text]


def parse_number(kind: str, text: str) -> int | float:
    """`text` as an int64, or as a float that is finite in 32 bits.

    Raises:
        ValueError: if it is none.
    """
    text = text.strip()
    if kind == features.FLOAT:
        if not _FLOAT.fullmatch(text):  # float() would also take nan, inf and 1_000
            raise ValueError(f"{text!r} is not a finite number")
        number = float(text)
        if abs(number) >= _FLOAT32_LIMIT:
            raise ValueError(f"{text!r} does not fit into a 32-bit float")
        if abs(number) <= _FLOAT32_NOTHING and text.lower().partition("e")[0].strip("+-0."):
            raise ValueError(f"{text!r} does not fit into a 32-bit float, which would hold 0 instead")
        return number
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is not an integer")
    integer = int(text.partition(".")[0])
    if not features.check_value(features.INT64, integer):
        raise ValueError(f"{text!r} does not fit into 64 bits")
    return integer


def text_of(value: Any) -> str | None:
    """A cell as text, None where it is empty.

    Raises:
        BadRowError: if it holds several values, of which no text can be made.
    """
    if is_empty(value):
        return None
    if isinstance(value, bytes):  # Parquet's binary columns
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (list, tuple, dict)):
        raise BadRowError(
            elements.Reason.BAD_VALUE,
            f"{reprlib.repr(value)} is a {type(value).__name__}, expected one value",
        )
    return value if isinstance(value, str) else str(value)


def text_in(cells: Mapping[str, Any], name: str) -> str | None:
    """The cell of a column as text, None where it is empty.

    Raises:
        BadRowError: if it holds several values.
    """
    try:
        return text_of(cells.get(name))
    except BadRowError as e:
        raise BadRowError(e.reason, f"column {name!r}: {e.detail}") from e


def is_empty(value: Any) -> bool:
    """Whether a cell holds nothing; a list of no values is no such cell."""
    return value is None or value in ("", b"") or (isinstance(value, float) and math.isnan(value))


def values_of(value: Any, separator: str | None) -> list[Any]:
    """The values in a cell of many: a list of them, or text with a separator."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if is_empty(value):
        return []
    return list((text_of(value) or "").split(separator)) if separator and isinstance(value, (str, bytes)) else [value]


def _texts_of(column: Column, value: Any) -> list[str]:
    """The values in a cell of many as texts; empty ones count for nothing, unless other lists go by their places."""
    separator = column.separator
    texts = [text_of(each) or "" for each in values_of(value, separator)]
    texts = [text.strip() for text in texts] if separator else texts
    filled = [text for text in texts if text.strip()]
    if len(filled) < len(texts) and column.kind != features.BYTES and (separator is None or separator.strip()):
        raise ValueError(f"value {texts.index('') if '' in texts else 0} of its list is empty")
    return filled
