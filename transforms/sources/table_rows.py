"""Parses the cells of a table's rows: the key, label, split, group and columns of a reference."""

from __future__ import annotations

import dataclasses
import math
import posixpath
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import features, storage
from imagebeam.transforms import elements

_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# pandas writes the integer 3 as 3.0 in a column with missing values.
_INTEGER = re.compile(r"[+-]?\d+(\.0+)?", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_FLOAT32_LIMIT = 2.0**128 - 2.0**103  # this and all above round to infinity in 32 bits
_FLOAT32_NOTHING = 2.0**-150  # this and all below round to zero in 32 bits


def is_number(text: str) -> bool:
    """Returns whether a text is a number in any notation, also `nan`."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_number(kind: str, text: str) -> int | float:
    """Parses an int64, or a float that is finite in 32 bits.

    Raises:
        ValueError: if `text` is not such a number.
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


_SMALLEST_FLOAT = 2.0**-126  # in 32 bits; TensorFlow treats smaller numbers as zero
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "-1": False}


class BadRowError(ValueError):
    """A row cannot be used; it becomes a reject."""

    def __init__(self, reason: elements.Reason, detail: str):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class MissingValueError(ValueError):
    """A row lacks a required value; this fails the run."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column whose values are stored as a feature."""

    name: str
    kind: str  # bytes, int64 or float
    many: bool = False  # a list of values
    separator: str | None = None  # between the values of a list in a text
    missing: str = "reject"  # or "error", or "default"
    default: Any = None
    positive: bool = False  # reject zero and negative values, which have no logarithm
    first: str | None = None  # the first and the last of the columns of a table whose values are the list
    last: str | None = None


@dataclasses.dataclass(frozen=True)
class RowFields:
    """Names the columns of a table that hold something, apart from the image."""

    key: str | None = None
    label: str | None = None
    label_separator: str | None = None  # between several classes of one image
    label_flags: tuple[str, ...] = ()  # one column of 0 and 1 per class
    split: str | None = None
    group: str | None = None
    columns: tuple[Column, ...] = ()
    sha256: str | None = None  # hash of the image's bytes

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the columns that must exist."""
        single = (self.key, self.label, self.split, self.group, self.sha256)
        names = (*single, *self.label_flags, *(column.name for column in self.columns))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the columns that have no default."""
        optional = {column.name for column in self.columns if column.missing == "default"}
        return tuple(name for name in self.needed if name not in optional)

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the columns whose text is stored, or names a label, split or group."""
        single = (self.label, self.split, self.group)
        names = (*single, *(column.name for column in self.columns if column.kind == features.BYTES))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def separators(self) -> dict[str, str | None]:
        """The columns with lists of values, and the separator of each; None if a list cannot be a text."""
        many = {column.name: column.separator for column in self.columns if column.many}
        if self.label is not None and self.label_separator is not None:
            many[self.label] = self.label_separator
        return many

    def fill(self, ref: elements.ImageRef, cells: Mapping[str, Any]) -> elements.ImageRef:
        """Returns `ref` with the label, split, group and columns in the cells; keeps what is not in a column.

        Raises:
            BadRowError: if a value cannot be parsed.
            MissingValueError: if a value is missing or cannot be parsed and the config says that this fails the run.
        """
        return ref._replace(
            label=self._label(cells) if self.label or self.label_flags else ref.label,
            split=(text_in(cells, self.split) or "").strip() if self.split else ref.split,
            group=(text_in(cells, self.group) or "").strip() if self.group else ref.group,
            columns=(*ref.columns, *(parse_column(column, cells.get(column.name)) for column in self.columns)),
            sha256=_parse_sha256(self.sha256, cells) if self.sha256 else ref.sha256,
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


def with_list(key: str, column: str, images: Sequence[tuple[int, elements.ExtraImage]]) -> elements.ImageRef:
    """Returns the reference of an example with a list of images.

    Args:
        key: of the example.
        column: with the list.
        images: each with its place in the list.

    Raises:
        BadRowError: if there is none.
    """
    if not images:
        raise BadRowError(elements.Reason.BAD_ROW, f"column {column!r} lists no image")
    positions = tuple(position for position, _ in images)
    (_, first), *others = images
    return first.as_ref(key)._replace(columns=(positions,), extra_images=tuple(image for _, image in others))


def _parse_sha256(column: str, cells: Mapping[str, Any]) -> str:
    text = (text_in(cells, column) or "").strip()
    if text and not _SHA256.fullmatch(text):
        raise BadRowError(elements.Reason.BAD_VALUE, f"column {column!r}: {text!r} is not a SHA-256 of 64 digits")
    return text


def parse_column(column: Column, value: Any) -> Any:
    """Returns the value of a column as bytes, int or float; a tuple of them if it is a list.

    Raises:
        BadRowError: if the value is missing or cannot be parsed.
        MissingValueError: the same if the config says that this fails the run.
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
                f"{detail}, and columns.{column.name}.missing is error: correct it, or set reject or default"
            ) from e
        raise BadRowError(elements.Reason.BAD_VALUE, detail) from e


def _parse(kind: str, text: str) -> bytes | int | float:
    return text.encode("utf-8", "surrogateescape") if kind == features.BYTES else parse_number(kind, text)


def _parse_flag(name: str, cell: str | None) -> bool:
    text = (cell or "").strip().lower()
    if text not in _FLAGS:
        raise BadRowError(elements.Reason.BAD_VALUE, f"column {name!r}: {text!r} is neither 1 (true) nor 0 (false, -1)")
    return _FLAGS[text]


def text_of(value: Any) -> str | None:
    """Returns a cell as text; None if it is empty.

    Raises:
        BadRowError: if it holds several values.
    """
    if is_empty(value):
        return None
    if isinstance(value, bytes):  # Parquet's binary columns
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (list, tuple, dict)):
        raise BadRowError(
            elements.Reason.BAD_VALUE, f"{reprlib.repr(value)} is a {type(value).__name__}, expected one value"
        )
    return value if isinstance(value, str) else str(value)


def text_in(cells: Mapping[str, Any], name: str) -> str | None:
    """Returns the cell of a column as text; None if it is empty.

    Raises:
        BadRowError: if it holds several values.
    """
    try:
        return text_of(cells.get(name))
    except BadRowError as e:
        raise BadRowError(e.reason, f"column {name!r}: {e.detail}") from e


def name_in(cells: Mapping[str, Any], column: str | None) -> str | None:
    """Returns a cell of a possibly broken row as text, for its reject; None without a usable one."""
    try:
        return text_of(cells.get(column)) if column else None
    except BadRowError:
        return None


def resolve_path(path: str, folder: str, allow_outside: bool) -> str:
    """Returns the address of a path in a table.

    Args:
        path: an address, or relative to `folder`.
        folder: address of the folder that paths are relative to.
        allow_outside: whether it may lead out of the folder.

    Raises:
        BadRowError: if it is outside of the folder, and must not be.
        ConfigError: if no storage has its scheme.
    """
    if is_absolute(path):
        uri = storage.normalize(path)
        inside = uri.startswith(storage.join(folder, ""))
    else:
        relative = posixpath.normpath(path)
        uri = storage.join(folder, relative)
        inside = relative.split("/")[0] != ".."
    if not inside and not allow_outside:
        raise BadRowError(
            elements.Reason.OUTSIDE_ROOT,
            f"{path!r} leaves {folder!r}; source.manifest.allow_outside: true would take it",
        )
    return uri


def is_absolute(path: str) -> bool:
    """Returns whether a path in a table is a complete address, not relative to the table or a folder."""
    return path.startswith("/") or path.lower().startswith("file://") or storage.scheme_of(path) != "file"


def is_empty(value: Any) -> bool:
    """Returns whether a cell is empty; an empty list does not count as empty."""
    return value is None or value in ("", b"") or (isinstance(value, float) and math.isnan(value))


def values_of(value: Any, separator: str | None) -> list[Any]:
    """Returns the values in a cell that holds a list, or a text with a separator."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if is_empty(value):
        return []
    return list((text_of(value) or "").split(separator)) if separator and isinstance(value, (str, bytes)) else [value]


def _texts_of(column: Column, value: Any) -> list[str]:
    """Returns the values in a cell with a list as texts, without empty ones.

    An empty number is an error, because values of other lists may belong to the same places.
    """
    separator = column.separator
    texts = [text_of(each) or "" for each in values_of(value, separator)]
    texts = [text.strip() for text in texts] if separator else texts
    filled = [text for text in texts if text.strip()]
    if len(filled) < len(texts) and column.kind != features.BYTES and (separator is None or separator.strip()):
        raise ValueError(f"value {texts.index('') if '' in texts else 0} of its list is empty")
    return filled
