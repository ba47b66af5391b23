"""Spells and sorts the names of classes, and notes what the user should know about them before a run."""

from __future__ import annotations

import collections
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_WHOLE_NUMBER = re.compile(r"\+?(-?\d+)(\.0+)?", re.ASCII)
_MAX_SHOWN = 5


def spell(cell: str) -> str:
    """Returns the name of the class in a table cell: stripped, and a whole number without its decimals.

    So `1`, `1.0` (how pandas writes integers in a column with missing values) and `+1` are one class, named `1`.
    Leading zeros stay: `007` is a name.
    """
    name = cell.strip()
    match = _WHOLE_NUMBER.fullmatch(name)
    if match is None:
        return name
    return "0" if match[1] == "-0" else match[1]


def are_numbers(names: Iterable[str]) -> bool:
    """Returns whether all names are integers of at most 18 digits."""
    return all(map(_INTEGER.fullmatch, names))


def sort_names(names: Iterable[str], by_number: bool) -> tuple[str, ...]:
    """Returns the names in the order of their ids.

    Args:
        names: each once.
        by_number: whether 10 comes after 2 if all names are integers; else they sort as text.
    """
    names = sorted(names)
    return tuple(sorted(names, key=int) if by_number and are_numbers(names) else names)


def note_on_numbers(ids: Mapping[str, int], from_column: bool) -> str | None:
    """Returns a note if the classes are numbers and their ids are different numbers; else None.

    Args:
        ids: by class.
        from_column: whether the classes are in a column, which `label.type: int` could store as it is.
    """
    if not ids or not are_numbers(ids):
        return None
    moved = [f"{name} -> {index}" for name, index in ids.items() if int(name) != index]
    if not moved:
        return None
    note = f"the classes are numbers, and {len(moved):,} of {len(ids):,} get another number as their id: {_few(moved)}"
    if not from_column:
        return f"{note}; names of folders and files sort as text; label.vocabulary gives another order"
    if all(int(name) == index for index, name in enumerate(ids, 1)):
        note += "; label.base: 1 stores ids from 1, which imagebeam's reader counts from 0"
    return f"{note}; label.type: int keeps the numbers"


def note_on_near_equals(names: Iterable[str]) -> str | None:
    """Returns a note on classes that are probably the same, such as `Cat` and `cat`; None if there are none."""
    alike: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(names):
        alike[_fold(name)].append(name)
    groups = [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]
    if not groups:
        return None
    return (
        f"classes whose names are nearly equal: {_few(groups, '; ')}: each is a class of its own; where one class is "
        "meant, spell it alike in the input"
    )


def _fold(name: str) -> str:
    """Makes names equal that differ in case, spaces, leading zeros, or composed and decomposed letters."""
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return folded.lstrip("0") or "0" if _INTEGER.fullmatch(folded) else folded


def notes_on_missing(classes: Mapping[str, Collection[str]], names: Sequence[str]) -> list[str]:
    """Returns notes on classes that have no image in a split.

    Args:
        classes: of each split.
        names: all classes.
    """
    notes = []
    for split, held in classes.items():
        absent = [repr(name) for name in names if name not in held]
        if absent:
            notes.append(
                f"{split} has no image of {len(absent):,} of the {len(names):,} classes, because these are too small "
                f"for its share: {_few(absent)}"
            )
    return notes


def _few(texts: Sequence[str], separator: str = ", ") -> str:
    """Joins the first texts; `...` replaces the rest."""
    return separator.join([*texts[:_MAX_SHOWN], *(["..."] if len(texts) > _MAX_SHOWN else [])])


# The format of TensorFlow's object detection: object_detection/protos/string_int_label_map.proto
LABEL_MAP_FILE = "label_map.pbtxt"
COUNTS = "objects"  # in the statistics of a shard


def count(labels: Iterable[int], texts: Iterable[bytes]) -> dict[str, int]:
    """Returns the numbers of the objects of one image, by id and name."""
    counted = Counter(zip(labels, texts))
    return {f"{label} {text.decode('utf-8', 'surrogateescape')}": number for (label, text), number in counted.items()}


def by_name(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts by name, in the order of the ids."""
    totals: Counter[str] = Counter()
    for key in sorted(counts, key=_parse):
        totals[_parse(key)[1]] += counts[key]
    return dict(totals)


def names_by_id(counts: Iterable[Iterable[str]], known: Mapping[int, bytes]) -> dict[int, str]:
    """Returns the name of each class in the order of the ids.

    Args:
        counts: keys of the counts of each split.
        known: classes of the source, which need not occur.
    """
    names = {label: text.decode("utf-8", "surrogateescape") for label, text in known.items()}
    for keys in counts:
        for label, name in map(_parse, keys):
            names.setdefault(label, name)
    return dict(sorted(names.items()))


def label_map(names: Mapping[int, str]) -> bytes:
    """Returns the content of `LABEL_MAP_FILE`."""
    items = (f"item {{\n  id: {label}\n  name: {_quote(name)}\n}}\n" for label, name in names.items())
    return "".join(items).encode("utf-8", "surrogateescape")


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)  # the escapes of JSON are those of protobuf's text


def _parse(key: str) -> tuple[int, str]:
    label, _, name = key.partition(" ")
    return int(label), name
