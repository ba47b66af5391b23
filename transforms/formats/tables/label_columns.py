"""Judges the columns of a table by their names and values: which one is the label, the split, a caption, a flag."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Sequence

from imagebeam.transforms.formats.tables import table_heads
from imagebeam.transforms.sources import name_signs, value_signs
from imagebeam.transforms.sources.folder_probe import split_meant, splits_named

_NUM_SHOWN = 4  # values of a column that are all shown
_NUM_SPLITS = 6  # values of a column of splits
_SEPARATORS = ("|", ";", ",", "\t")
_IN_TEXTS = (" and ", " & ", " ")  # they never prove that there are several classes: "not cat"
_ALSO_IN_NAMES = ("+", "/", "&", "_", "-")  # they may also be between several classes


def find_label(table: table_heads.Table, others: Sequence[str]) -> tuple[str | None, bool]:
    """Returns the column that is likely the label, and whether its name says so."""
    usable = [name for name in others if name.lower() not in name_signs.SPLIT_COLUMNS]  # partition: 0, 1 or 2
    if "x" in map(str.lower, others):  # coordinates
        usable = [name for name in usable if name.lower() != "y"]
    usable = [name for name in usable if not name_signs.NO_LABELS.fullmatch(name)]
    usable = [name for name in usable if (values := table.values(name)) and not are_no_labels(values)]
    if not table.has_header:  # its names are not the user's
        usable = [
            name
            for name in usable
            if not _are_unique(values := table.values(name)) or value_signs.kind_of(values) == "float"
        ]
    by_name = {name.lower(): name for name in usable}
    for name in name_signs.LABELS:
        if name in by_name and (name in name_signs.SURE_LABELS or len({*table.values(by_name[name])}) > 1):
            return by_name[name], True
    usable = [name for name in usable if len({*(values := table.values(name))}) > 1 and not _are_free(values)]
    if not usable:
        return None, False
    fewest = min(usable, key=lambda name: len({*table.values(name)}))
    return fewest, len(others) == 1


_NO_LABEL = re.compile(r"[\[{].*[\]}]|\w+://.*|[0-9a-fA-F-]{16,}|.*[/\\].*\.\w{2,5}", re.DOTALL)


def are_no_labels(values: Sequence[str]) -> bool:
    """Returns whether values are objects, addresses, hashes or names of files, which are never labels."""
    return sum(bool(_NO_LABEL.fullmatch(each)) or table_heads.is_image(each) for each in values) * 2 > len(values)


def _are_unique(values: Sequence[str]) -> bool:
    return len({*values}) == len(values) > 9


def _are_free(values: Sequence[str]) -> bool:
    """Returns whether texts are titles or ids: they have several words, or each has one row."""
    texts = [each for each in values if not value_signs.is_number(each)]
    is_long = sum(len(each.split()) for each in texts) > 3 * len(texts)
    return len(texts) * 2 > len(values) and (is_long or _are_unique(values))


def find_text(table: table_heads.Table, others: Sequence[str]) -> str | None:
    """Returns the only column of texts of a table without a label; None if there is none, or several."""
    usable = [name for name in others if not name_signs.NO_LABELS.fullmatch(name)]
    usable = [n for n in usable if value_signs.are_texts(values := table.values(n)) and not are_no_labels(values)]
    return usable[0] if len(usable) == 1 else None


def split_of_value(value: str) -> str | None:
    """Returns the split that a cell means; None if none."""
    return name_signs.SPLIT_OF_SHORT.get(value.lower()) or split_meant(value)


def find_split(table: table_heads.Table) -> str | None:
    """Returns the column whose values are the names of splits; None if there is none.

    A column that is not called so has several splits, and no other value.
    """
    held = {name: values for name in table.columns if not are_no_labels([*(values := {*table.values(name)})])}
    meant = {name: {*map(split_of_value, each)} for name, each in held.items() if 0 < len(each) <= _NUM_SPLITS}
    named = (name for name, splits in meant.items() if name.lower() in name_signs.SPLIT_COLUMNS and splits != {None})
    other = (name for name, splits in meant.items() if None not in splits and len(splits) > 1)
    return next(named, None) or next(other, None)


def may_be_splits(table: table_heads.Table, others: Sequence[str]) -> list[str]:
    """Returns the columns of a few values that are called splits, or of which one value is: 1, 2, 3; train, predict."""
    few = {name: values for name in others if 1 < len(values := {*table.values(name)}) <= _NUM_SPLITS}
    return [
        name
        for name, values in few.items()
        if name.lower() in name_signs.SPLIT_COLUMNS
        or splits_named(name)
        or (name.lower() not in name_signs.LABELS and any(map(split_meant, values)))
    ]


def split_that_is_there(table: table_heads.Table, others: Sequence[str]) -> str | None:
    """Returns the column that says the splits, or may say them; None if there is none."""
    return find_split(table) or next(iter(may_be_splits(table, others)), None)


def with_values(table: table_heads.Table, name: str) -> str:
    """Returns the name of a column, with its values if they are few: `part (a, b)`."""
    values = sorted({*table.values(name)})
    return f"{name} ({', '.join(values)})" if 1 < len(values) <= _NUM_SHOWN else name


def doubts_on_boxes(table: table_heads.Table, edges: Sequence[str]) -> Iterator[str]:
    """Yields what contradicts that the rows of a table are boxes in pixels, all in one split."""
    values = [value for name in edges for value in table.values(name)]
    if values and all(value_signs.is_number(each) and 0 <= float(each) <= 1 for each in values):
        yield "all edges of boxes are from 0 to 1, where pixels are expected: multiply them by the sizes of the images"
    if named := split_that_is_there(table, table.columns):
        yield f"the column {named!r} may be the split, which is not read: write a table for each split"


def separator_of(values: Sequence[str]) -> str:
    """Returns the text between several classes of one cell; "" if cells have one class each."""
    for separator in _SEPARATORS:
        several = [value for value in values if separator in value]
        if len(several) < max(2, len(values) / 10):
            continue
        pieces = collections.Counter(piece.strip() for value in values for piece in value.split(separator))
        alone = {value for value in values if separator not in value}
        if any(piece in pieces for piece in alone) and len(pieces) < len({*values}):
            shared = sum(number > 1 for number in pieces.values())
            if shared >= len(pieces) / 2:
                return separator
    return ""


def may_be_several(values: Sequence[str]) -> str:
    """Returns the text that may be between several classes of one cell, which `separator_of` does not prove; or ""."""
    distinct = {*values}
    for separator in _ALSO_IN_NAMES:
        several = (value.split(separator) for value in distinct if separator in value)
        if any(map(distinct.issuperset, several)):  # rust, scab, rust+scab
            return separator
    for separator in (*_SEPARATORS, *_IN_TEXTS):
        parts = [frozenset(value.split(separator)) for value in distinct]
        groups = [each for each in parts if len(each) > 1]
        if groups and (separator in "|;" or all(map(str.isdecimal, frozenset().union(*parts)))):
            return separator
        alone = frozenset().union(*(each for each in parts if len(each) == 1))
        if any(each <= alone or any(each < outer for outer in groups) for each in groups):  # a, b, a b
            return separator
    return ""


_DECIMAL = re.compile(r".*\d\.\d.*")
_BITS = re.compile(r"[01]{2,}")


def may_be_codes(values: Sequence[str]) -> bool:
    """Returns whether values are numbers with more beside them, or digits of which each is a class: cat:0.9, 0110."""
    codes = [each for each in values if _DECIMAL.fullmatch(each) and not value_signs.is_number(each)]
    are_bits = len({*values}) > 2 and len({*map(len, values)}) == 1 and all(map(_BITS.fullmatch, values))
    return are_bits or len(codes) * 2 > len(values)


def is_flag(table: table_heads.Table, name: str) -> bool:
    """Returns whether a column holds 0 and 1, or -1 and 1, and is not called a split."""
    if may_be_splits(table, [name]):
        return False
    values = {*table.values(name)}
    return bool(values) and values <= {"0", "1", "-1", "0.0", "1.0", "-1.0"}


def has_two_negatives(table: table_heads.Table, name: str) -> bool:
    """Returns whether a column of flags holds -1 and 0, one of which may be unknown."""
    return {"-1", "0"} <= {value.removesuffix(".0") for value in table.values(name)}


def is_prose(table: table_heads.Table, name: str) -> bool:
    """Returns whether the texts of a column have three words or more on average."""
    values = table.values(name)[:100]
    return bool(values) and sum(len(value.split()) for value in values) >= 3 * len(values)
