"""Reads small files of text that a config names."""

from __future__ import annotations

import posixpath

from imagebeam import errors, storage


def address_below(root: str, given: str) -> str:
    """Returns the address of a file that a config names: a relative one is below the folder `root`."""
    return given if given.startswith("/") or "://" in given else storage.join(root, posixpath.normpath(given))


def read_text(uri: str, max_mib: int, where: str, remedy: str, doubt: str) -> str:
    """Returns the text of a file.

    Args:
        uri: of the file.
        max_mib: the most that is read, in MiB.
        where: the file, for errors.
        remedy: what to do if it cannot be read.
        doubt: what a larger file is, such as `no list of colors`.

    Raises:
        ConfigError: if the file cannot be read, is not UTF-8, or is larger.
    """
    try:
        data = storage.storage_of(uri).read(uri, 0, (max_mib << 20) + 1)
        text = data.decode("utf-8-sig")
    except OSError as e:
        raise errors.ConfigError(f"{where} cannot be read ({e.strerror or e}); {remedy}") from e
    except UnicodeDecodeError as e:
        raise errors.ConfigError(f"{where} is not UTF-8 text: {e}") from e
    if len(data) > max_mib << 20:
        raise errors.ConfigError(f"{where} has more than {max_mib} MiB; it is {doubt}")
    return text
