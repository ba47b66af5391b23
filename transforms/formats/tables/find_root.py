"""Looks for the folder that the paths of a table are relative to, if none of its images is where it should be."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Sequence

from imagebeam import concurrency, storage
from imagebeam.transforms.formats.tables import path_template

NUM_ROWS = 100  # that are looked at for a path

_MAX_FOLDERS = 60
_REQUESTS_AT_ONCE = 32
_EXTENSIONS = (".jpg", ".png", ".jpeg", ".JPG", ".webp")


def advise(folder: str, root: str | None, image: str, paths: Sequence[str]) -> str:
    """Returns what the paths are relative to, and which folder has the first of them.

    Args:
        folder: of the table.
        root: `source.manifest.root` as an address; None if it is not set.
        image: `source.manifest.image`.
        paths: the first relative paths of the table; of images that may have any extension, with `.*`.
    """
    if not paths:
        return ""
    first = paths[0]
    said = (
        f"paths are relative to source.manifest.root, {root!r}"
        if root is not None
        else f"paths are relative to the table's folder, {folder!r}"
    )
    named = first.removesuffix(path_template.ANY_EXTENSION)
    wanted = [""] if named == first else []
    uris = [
        (candidate, extension, storage.join_relative(candidate, posixpath.normpath(named) + extension))
        for extension in (*wanted, *_EXTENSIONS)
        for candidate in dict.fromkeys(_candidates(folder))
    ]
    exists = concurrency.map_ahead(lambda each: _exists(each[2]), uris, _REQUESTS_AT_ONCE)
    for (candidate, extension, uri), found in zip(uris, exists):
        if not found:
            continue
        keys = [] if candidate == (root or folder) else [f"source.manifest.root: {_relative(candidate, folder)}"]
        if extension and named == first:
            template = image if path_template.parse(image) else f"{{{image}}}"
            keys.append(f"source.manifest.image: '{template}.*'")
        return f"{said}; {uri!r} exists: set {' and '.join(keys)}" if keys else said
    return (
        f"{said}, and neither it nor the folders next to it, below it and above it have {first!r}: set "
        "source.manifest.root to the folder that has the images, and if the table gives them without an extension, "
        "source.manifest.image to a template such as '{id}.*'"
    )


def _exists(uri: str) -> bool:
    try:
        return storage.storage_of(uri).stat(uri).kind == storage.FILE
    except (OSError, ValueError):
        return False


def _candidates(folder: str) -> Iterator[str]:
    """Yields the folder of the table, those in it and in these, the folder above it, those beside it, and two above."""
    yield folder
    near = list(_folders_in(folder))
    yield from near
    for each in near[:_MAX_FOLDERS]:
        yield from itertools.islice(_folders_in(each), _MAX_FOLDERS // max(1, min(len(near), _MAX_FOLDERS)) + 1)
    above = parent_of(folder)
    if above:
        yield above
        yield from _folders_in(above)
        if higher := parent_of(above):
            yield higher


def parent_of(folder: str) -> str:
    """Returns the folder above; "" above the root of a storage."""
    parent = folder.rstrip("/").rpartition("/")[0]
    return "" if parent.endswith("/") or folder.rstrip("/") == storage.root_of(folder).rstrip("/") else parent


def _folders_in(folder: str) -> Iterator[str]:
    try:
        entries = storage.storage_of(folder).list_directory(folder)
        names = sorted(
            itertools.islice((each.name for each in entries if each.kind == storage.DIRECTORY), 10 * _MAX_FOLDERS)
        )
    except OSError:
        return
    for name in names[:_MAX_FOLDERS]:
        if name and not name.startswith("."):
            yield storage.join(folder, name)


def _relative(candidate: str, folder: str) -> str:
    """Returns `candidate` relative to the table's folder."""
    return posixpath.relpath(candidate.replace("://", ":/"), folder.replace("://", ":/"))
