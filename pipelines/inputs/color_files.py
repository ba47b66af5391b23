"""Reads the colors in which masks are drawn, from a config or from the file that comes with a data set."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping

from imagebeam import errors
from imagebeam.pipelines.config import source_section
from imagebeam.transforms.images import class_masks
from imagebeam.transforms.sources import text_files

_MAX_MIB = 1
_MAX_CLASSES = 1 << 12
_LEVELS = (("r", "g", "b"), ("red", "green", "blue"))  # names of columns
_NAMES = ("name", "class", "label")
_NUMBERS = r"(?P<r>\d{1,3})[\s,;]+(?P<g>\d{1,3})[\s,;]+(?P<b>\d{1,3})"
_LINES = tuple(
    map(
        re.compile,
        (
            rf"{_NUMBERS}[\s,;]+(?P<name>\S.*)",  # CamVid's label_colors.txt: 64 128 64  Animal
            rf"(?P<name>[^\s,;:][^,;:\t]*?)\s*[\s,;:]\s*{_NUMBERS}\s*(?::.*)?",  # class_dict.csv; CVAT's road:0,0,0::
        ),
    )
)
_OPTION = "source.masks.colors"


def read_colors(masks: source_section.MasksConfig, root: str) -> class_masks.MaskColors | None:
    """Returns the colors of the classes; None if masks hold numbers.

    Args:
        masks: section of the config.
        root: folder that the address of a file is relative to.

    Raises:
        ConfigError: if the file cannot be read, or two classes have one color.
    """
    given = masks.colors
    if given is None:
        return None
    if isinstance(given, str):
        uri = text_files.address_below(root, given)
        where, pairs = f"{_OPTION}: {uri!r}", tuple(_read_file(uri))
    else:
        where, pairs = _OPTION, tuple(given.items())
    _check(pairs, where)
    if unknown := sorted(set(masks.ignore) - {name for name, _ in pairs}):
        raise errors.ConfigError(
            f"source.masks.ignore names {unknown[0]!r}, and {where} has {', '.join(name for name, _ in pairs)}"
        )
    if len(pairs) > _MAX_CLASSES:
        raise errors.ConfigError(f"{where} has {len(pairs):,} colors, expected up to {_MAX_CLASSES:,}")
    colors = class_masks.MaskColors(pairs, frozenset(masks.ignore))
    highest = class_masks.IGNORED if masks.ignore else class_masks.IGNORED + 1
    if masks.bits == 8 and len(colors.names) > highest:
        raise errors.ConfigError(f"{where} has {len(colors.names):,} classes: set source.masks.bits: 16")
    return colors


def _check(pairs: Iterable[tuple[str, tuple[int, int, int]]], where: str) -> None:
    named: dict[tuple[int, int, int], str] = {}
    names: set[str] = set()
    for name, color in pairs:
        if not name.strip() or name in names:
            raise errors.ConfigError(f"{where} has the name {name!r} twice, or an empty one; give each class its own")
        names.add(name)
        other = named.setdefault(color, name)
        if other != name:
            raise errors.ConfigError(f"{where} gives {other!r} and {name!r} the same color {list(color)}; remove one")
    if not named:
        raise errors.ConfigError(f"{where} has no color; write NAME: [red, green, blue] for each class")


def _read_file(uri: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yields names and colors in the order of a file.

    Raises:
        ConfigError: if it cannot be read, or a line has no name and color.
    """
    remedy = "give a file below --input, or a mapping"
    lines = text_files.read_text(uri, _MAX_MIB, f"{_OPTION}: {uri!r}", remedy, "no list of colors").splitlines()
    columns = _columns_of(lines[0]) if lines else None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#") or (number == 1 and not re.search(r"\d", line)):
            continue
        found = _parse(line, columns)
        if found is None or max(found[1]) > 255:
            raise errors.ConfigError(
                f"{_OPTION}: {uri!r}, line {number}: {line[:80]!r}; expected name,r,g,b or r g b name, with 0 to 255"
            )
        yield found


def _columns_of(head: str) -> tuple[int, int, int, int] | None:
    """Returns the places of name, red, green and blue, if the first line of a file names them."""
    names = [name.strip().lower() for name in next(csv.reader([head]), [])]
    name = next((each for each in _NAMES if each in names), None)
    levels = next((each for each in _LEVELS if set(each) <= set(names)), None)
    if name is None or levels is None:
        return None
    return names.index(name), *map(names.index, levels)  # type: ignore[return-value]


def _parse(line: str, columns: tuple[int, int, int, int] | None) -> tuple[str, tuple[int, int, int]] | None:
    fields: Mapping[str, str] | None = None
    if columns is not None:
        cells = next(csv.reader([line]), [])
        if len(cells) > max(columns):
            fields = dict(zip(("name", "r", "g", "b"), (cells[place].strip() for place in columns)))
    else:
        match = next(filter(None, (form.fullmatch(line.strip()) for form in _LINES)), None)
        fields = match.groupdict() if match else None
    if fields is None or not all(fields[each].isdecimal() for each in "rgb"):
        return None
    return fields["name"].strip(), (int(fields["r"]), int(fields["g"]), int(fields["b"]))
