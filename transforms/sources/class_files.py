"""Reads the names of the classes of objects that a config or a file lists."""

from __future__ import annotations

from collections.abc import Sequence

from imagebeam import errors
from imagebeam.transforms.sources import text_files

_MAX_MIB = 16


def read_classes(root: str, given: str | Sequence[str], option: str) -> tuple[str, ...]:
    """Returns names of classes in their order.

    Args:
        root: folder of the data set.
        given: the names, or a file below `root` with a name on each line.
        option: key of the config, or file, for errors.

    Raises:
        ConfigError: if the file cannot be read, or a name is empty or repeated.
    """
    if not isinstance(given, str):
        names = tuple(given)
        where = option
    else:
        uri = text_files.address_below(root, given)
        where = f"{option}: {uri!r}"
        text = text_files.read_text(uri, _MAX_MIB, where, "give a file below --input, or a list", "no list of classes")
        names = tuple(line.strip() for line in text.rstrip().splitlines())
    check_names(names, where)
    return names


def check_names(names: Sequence[str], where: str) -> None:
    """Checks that each class has a name of its own.

    Raises:
        ConfigError: if not.
    """
    empty = next((index for index, name in enumerate(names) if not name.strip()), None)
    if empty is not None or not names:
        raise errors.ConfigError(f"{where}: the name of class {empty or 0} is empty; give each class a name")
    if len(set(names)) < len(names):
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise errors.ConfigError(f"{where} names {repeated!r} twice; give each class a name of its own")
