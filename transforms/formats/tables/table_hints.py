"""Says what to do about a table that lacks columns, or none of whose images is found."""

from __future__ import annotations

import difflib
import itertools
import posixpath
from collections.abc import Iterator, Sequence

from imagebeam import concurrency, storage
from imagebeam.transforms.formats.tables import row_steps, table_formats, table_heads

NUM_ROWS = 100  # that are looked at for a path

_MAX_BESIDE = 60
_REQUESTS_AT_ONCE = 32
_EXTENSIONS = (".jpg", ".png", ".jpeg", ".JPG", ".webp")


def hint_on_root(folder: str, root: str | None, image: str, paths: Sequence[str]) -> str:
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
    named = first.removesuffix(row_steps.ANY_EXTENSION)
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
            template = image if row_steps.parse(image) else f"{{{image}}}"
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
    for each in near[:_MAX_BESIDE]:
        yield from itertools.islice(_folders_in(each), _MAX_BESIDE // max(1, min(len(near), _MAX_BESIDE)) + 1)
    above = table_heads.parent_of(folder)
    if above:
        yield above
        yield from _folders_in(above)
        if higher := table_heads.parent_of(above):
            yield higher


def _folders_in(folder: str) -> Iterator[str]:
    try:
        entries = storage.storage_of(folder).list_directory(folder)
        names = sorted(
            itertools.islice((each.name for each in entries if each.kind == storage.DIRECTORY), 10 * _MAX_BESIDE)
        )
    except OSError:
        return
    for name in names[:_MAX_BESIDE]:
        if name and not name.startswith("."):
            yield storage.join(folder, name)


def _relative(candidate: str, folder: str) -> str:
    """Returns `candidate` relative to the table's folder."""
    return posixpath.relpath(candidate.replace("://", ":/"), folder.replace("://", ":/"))


_REMEDY = "set source.manifest.image, label.column and the like"


def hint_on_columns(
    table: table_formats.TableFile, names: Sequence[str], missing: Sequence[str], needed: Sequence[str]
) -> str:
    """Returns what to do about `missing` columns.

    Args:
        table: the table.
        names: its columns.
        missing: the columns that it lacks.
        needed: all columns that the config names; the first holds the paths of the images.
    """
    if table.format == "csv" and not table.header:
        if len(names) == 1 and (delimiter := table_formats.guess_delimiter(names[0], table.separator, needed)):
            return f"its first line is split by {delimiter}"
        if any(map(table_heads.is_image, names)):
            return f"its first line is a row, not a header: set source.manifest.header: {_header(names, needed)}"
    near = [f"{name!r} may be {found[0]!r}" for name in missing if (found := _nearest(name, names))]
    return "; ".join([*near, _REMEDY])


def _header(names: Sequence[str], needed: Sequence[str]) -> str:
    """Suggests a header for a table whose first line is a row; the image's column is where the path is."""
    if len(names) != len(needed):
        return f"[...], a name for each of its {len(names)} columns, {', '.join(map(repr, needed))} among them"
    place = next(index for index, name in enumerate(names) if table_heads.is_image(name))
    rest = list(needed[1:])
    return f"[{', '.join([*rest[:place], needed[0], *rest[place:]])}]"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    """Returns the column with the most similar spelling, ignoring case, if one is similar."""
    folded = {other.casefold(): other for other in names}
    return [folded[other] for other in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)]
