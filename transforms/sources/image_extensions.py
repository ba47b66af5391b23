"""Finds the extensions of images that a table names without one, by a listing of their folder."""

from __future__ import annotations

import array
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagebeam.transforms import hashing
from imagebeam.transforms.sources import files, walk_folders

if TYPE_CHECKING:
    import numpy as np


class ImageExtensions:
    """The extensions of all images below a folder, by the address without extension: 10 bytes an image."""

    def __init__(self, stems: np.ndarray, numbers: np.ndarray, names: Sequence[str]):
        self._stems = stems  # uint64, sorted: hashes of the addresses
        self._numbers = numbers  # uint16: index in `names`
        self._names = names  # such as ".jpg"

    def find(self, addresses: Sequence[str]) -> list[tuple[str, ...]]:
        """Returns the extensions that exist for each address without one: (), (".jpg",), (".jpg", ".png")."""
        import numpy as np

        wanted = np.fromiter(map(_hash, addresses), np.uint64, len(addresses))
        first = np.searchsorted(self._stems, wanted, "left").tolist()
        last = np.searchsorted(self._stems, wanted, "right").tolist()
        return [
            tuple(sorted(self._names[number] for number in self._numbers[start:end])) for start, end in zip(first, last)
        ]


def list_extensions(folder: str, exclude: str = "") -> ImageExtensions:
    """Lists a folder and all folders below it.

    Args:
        folder: its address.
        exclude: address that is not listed: the output folder.

    Raises:
        OSError: if a folder cannot be listed.
    """
    import numpy as np  # takes 60 ms, and is needed only here

    stems, numbers = array.array("Q"), array.array("H")
    names: dict[str, int] = {}
    for uri in walk_folders.find_files(folder, walk_folders.EVERYTHING, exclude):
        stem, extension = posixpath.splitext(uri)
        if extension[1:].lower() in files.IMAGE_EXTENSIONS:
            stems.append(_hash(stem))
            numbers.append(names.setdefault(extension, len(names)))
    found = np.frombuffer(stems, np.uint64) if stems else np.zeros(0, np.uint64)
    order = np.argsort(found, kind="stable")
    known = np.frombuffer(numbers, np.uint16) if numbers else np.zeros(0, np.uint16)
    return ImageExtensions(found[order], known[order], tuple(names))


def _hash(address: str) -> int:
    return hashing.hash64(address, 0, b"imagebeam.stems")
