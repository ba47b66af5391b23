"""Explains why a table lacks the expected columns: another delimiter, no header, or another spelling."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from imagebeam.transforms.formats.tables import table_formats
from imagebeam.transforms.sources import files

_REMEDY = "set source.manifest.image, label.column and the like"


def advise(table: table_formats.TableFile, names: Sequence[str], missing: Sequence[str], needed: Sequence[str]) -> str:
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
        if any(map(_is_image, names)):
            return f"its first line is a row, not a header: set source.manifest.header: {_header(names, needed)}"
    near = [f"{name!r} may be {found[0]!r}" for name in missing if (found := _nearest(name, names))]
    return "; ".join([*near, _REMEDY])


def _is_image(name: str) -> bool:
    stem, _, extension = name.rpartition(".")
    return bool(stem) and extension.lower() in files.IMAGE_EXTENSIONS


def _header(names: Sequence[str], needed: Sequence[str]) -> str:
    """Suggests a header for a table whose first line is a row; the image's column is where the path is."""
    if len(names) != len(needed):
        return f"[...], a name for each of its {len(names)} columns, {', '.join(map(repr, needed))} among them"
    place = next(index for index, name in enumerate(names) if _is_image(name))
    rest = list(needed[1:])
    return f"[{', '.join([*rest[:place], needed[0], *rest[place:]])}]"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    """Returns the column with the most similar spelling, ignoring case, if one is similar."""
    folded = {other.casefold(): other for other in names}
    return [folded[other] for other in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)]
