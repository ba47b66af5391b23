"""Finds the rest of the paths of images that a table names without folder or extension, by a listing."""

from __future__ import annotations

import array
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from imagebeam import storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import path_template
from imagebeam.transforms.sources import files, walk_folders

if TYPE_CHECKING:
    import numpy as np


class Around(NamedTuple):
    """What a path has around the part that a table names."""

    before: str  # the folders, with a slash at the end; "" if the table names them
    after: str  # the extension; "" if the table names it


class PathRests(NamedTuple):
    """The rest of the paths of all images below a folder, by the part that a table names: 12 bytes an image."""

    stems: np.ndarray  # uint64, sorted: hashes of the parts
    numbers: np.ndarray  # uint32: index in `rests`
    rests: Sequence[Around]

    def find(self, stems: Sequence[str]) -> list[tuple[Around, ...]]:
        """Returns what exists around each part: nothing, one rest, or several in their order."""
        import numpy as np

        wanted = np.fromiter(map(_hash, stems), np.uint64, len(stems))
        first = np.searchsorted(self.stems, wanted, "left").tolist()
        last = np.searchsorted(self.stems, wanted, "right").tolist()
        return [
            tuple(sorted(self.rests[number] for number in self.numbers[start:end])) for start, end in zip(first, last)
        ]


def list_rests(folder: str, template: path_template.PathTemplate, exclude: str = "") -> PathRests:
    """Lists a folder and all folders below it.

    Args:
        folder: its address.
        template: says which part of a path a table names: the whole address, or its last names.
        exclude: address that is not listed: the output folder.

    Raises:
        OSError: if a folder cannot be listed.
    """
    import numpy as np  # takes 60 ms, and is needed only here

    stems, numbers = array.array("Q"), array.array("I")
    rests: dict[Around, int] = {}
    num_parts = template.num_parts_found
    for uri in walk_folders.find_files(folder, walk_folders.EVERYTHING, exclude):
        stem, extension = posixpath.splitext(uri)
        if extension[1:].lower() not in files.IMAGE_EXTENSIONS:
            continue
        if not template.any_extension:
            stem, extension = uri, ""
        before = ""
        if num_parts:
            named = "/".join(stem.rsplit("/", num_parts)[1:])
            before, stem = stem.removesuffix(named).removeprefix(storage.join(folder, "")), named
        stems.append(_hash(stem))
        numbers.append(rests.setdefault(Around(before, extension), len(rests)))
    found = np.frombuffer(stems, np.uint64) if stems else np.zeros(0, np.uint64)
    order = np.argsort(found, kind="stable")
    known = np.frombuffer(numbers, np.uint32) if numbers else np.zeros(0, np.uint32)
    return PathRests(found[order], known[order], tuple(rests))


def _hash(address: str) -> int:
    return elements.hash64(address, 0, b"imagebeam.stems")
