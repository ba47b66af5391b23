"""Counts the images in folders of a data set that belong to no split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from imagebeam import plural, storage
from imagebeam.transforms.sources import files, walk_folders

KIND = "image_outside_splits"
EXTENSIONS = tuple(f".{each}" for name in files.IMAGE_EXTENSIONS for each in (name, name.upper()))


def notes(folders: Sequence[str]) -> tuple[str, ...]:
    """Returns a note that names folders which are not read; () if there are none."""
    if not folders:
        return ()
    return (
        f"folders with images that belong to no split, and are not read: {plural.name_some(folders)}; "
        "to read them, name them with the splits in the section of the source",
    )


def count_images(root: str, folders: Iterable[str], exclude: str = "") -> dict[str, int]:
    """Returns the number of files with the extension of an image in these folders and below, as a kind of files.

    Args:
        root: of the data set.
        folders: paths below it.
        exclude: address that is not searched.

    Raises:
        OSError: if a folder cannot be listed.
    """
    every = (walk_folders.find_files(storage.join(root, each), walk_folders.EVERYTHING, exclude) for each in folders)
    count = sum(uri.endswith(EXTENSIONS) for found in every for uri in found)
    return {KIND: count} if count else {}
