"""Reads the label files that a config names: the vocabulary, texts of classes, labels by number."""

from __future__ import annotations

from collections.abc import Mapping

from imagebeam import errors, storage
from imagebeam.transforms.classes import class_names, label_names


def read_vocabulary(address: str | None, in_column: bool = False) -> tuple[str, ...] | None:
    """Returns the classes in the order of their ids.

    Args:
        address: of the file.
        in_column: whether labels are cells of a column; then class names are normalised like cells.

    Raises:
        ConfigError: if the file cannot be read, or has a class twice or none on a line.
    """
    if address is None:
        return None
    labels = _read_lines("label.vocabulary", address)
    if in_column:
        for number, label in enumerate(labels, 1):
            _check_text("label.vocabulary", address, number, label)  # a cell is text, a folder's name any bytes
        labels = list(map(class_names.spell, labels))
    blank = next((index for index, name in enumerate(labels, 1) if not name.strip()), None)
    if blank is not None or not labels:
        raise errors.ConfigError(
            "label-file-empty-line", f"label.vocabulary {address!r} has an empty line {blank or 1}; one label a line"
        )
    repeated = (
        next((name for name in labels if labels.count(name) > 1), None) if len(set(labels)) < len(labels) else None
    )
    if repeated is not None:
        raise errors.ConfigError(
            "vocabulary-repeats-class",
            f"label.vocabulary {address!r} names {repeated!r} twice; the ids would be ambiguous",
        )
    return tuple(labels)


def read_texts(address: str | None, in_column: bool = False) -> dict[str, str]:
    """Returns the text of each class, from lines such as `n01440764 tench, Tinca tinca`.

    The class ends at the first tab if all lines have one, otherwise at the first space. With `in_column`, class names
    are normalised like the cells of a column.

    Raises:
        ConfigError: if the file cannot be read, has no lines, or a class twice or without a text.
    """
    if address is None:
        return {}
    lines = _read_lines("label.texts", address)
    if not lines:
        raise errors.ConfigError("label-file-empty", f"label.texts {address!r} is empty; write CLASS TEXT on each line")
    separator = "\t" if all("\t" in line for line in lines) else None
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, *rest = line.split(separator, 1)[:2] or [""]
        text = rest[0].strip() if rest else ""
        _check_text("label.texts", address, number, text)
        name = class_names.spell(name) if in_column else name
        if not name or not text or name in texts:
            what = "twice" if name in texts else "without a text"
            raise errors.ConfigError(
                "label-texts-bad-line", f"label.texts {address!r}, line {number}: {name!r} {what}; write CLASS TEXT"
            )
        texts[name] = text
    return texts


def read_lists(addresses: Mapping[str, str]) -> label_names.Lists:
    """Returns the labels of the images in each folder, in the order of the images' numbers.

    Raises:
        ConfigError: if a file cannot be read, or has no label on a line.
    """
    lists = []
    for folder, address in addresses.items():
        labels = tuple(line.strip() for line in _read_lines("label.lists", address))
        blank = next((number for number, label in enumerate(labels, 1) if not label), None)
        if blank is not None or not labels:
            raise errors.ConfigError(
                "label-file-empty-line",
                f"label.lists: {folder}: {address!r} has an empty line {blank or 1}; line n is the label of image n",
            )
        lists.append((folder.strip("/"), labels))
    return tuple(lists)


def _read_lines(option: str, address: str) -> list[str]:
    uri = storage.normalize(address)
    try:
        data = storage.storage_of(uri).read(uri)
    except OSError as e:
        raise errors.ConfigError(
            "label-file-unreadable", f"{option} {address!r} cannot be read ({e.strerror or e})"
        ) from e
    if b"\0" in data:
        raise errors.ConfigError(
            "label-file-not-utf8", f"{option} {address!r} looks like UTF-16 text; save it as UTF-8"
        )
    return data.decode("utf-8-sig", "surrogateescape").splitlines()


def _check_text(option: str, address: str, number: int, text: str) -> None:
    """Checks that a text in line `number` is UTF-8.

    Raises:
        ConfigError: if it is not.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        found = text.encode("utf-8", "surrogateescape")
        raise errors.ConfigError(
            "label-file-not-utf8",
            f"{option} {address!r}, line {number}: {found!r} is not UTF-8; save the file as UTF-8",
        ) from e
