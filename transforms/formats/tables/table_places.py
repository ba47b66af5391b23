"""Where the images of a table are: which column names them, and in which folders they were found."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from imagebeam.transforms.formats.tables import table_heads
from imagebeam.transforms.sources.folder_probe import Folder, FolderProbe, likely_first, split_meant, spread

_NUM_VALUES = 20  # of a column that are looked for as images
_NUM_FOLDERS = 40  # in which images are looked for
_NUM_INNER = 20  # folders beside those of splits, in each of the first folders
_SHARE_SPREAD = 0.9  # of images that are in one of several folders
_IMAGE_NAMES = ("image", "file_name", "filename", "image_path", "path", "file", "image_id", "id", "image_name", "img")
_IMAGE_WORD = re.compile(r"(?i)id|ima?ge?|file|name|path|photo|picture")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".txt")
MAX_TABLES = 12  # in one folder


class Place(NamedTuple):
    """Where the images of a table are."""

    column: str
    folder: str  # that the paths are relative to, below the root of the survey
    has_extension: bool
    found: int  # of those looked for
    looked_for: int
    inside: tuple[str, ...] = ()  # folders below `folder` that hold some of them each; () if they are in it


def find_place(survey: FolderProbe, at: str, table: table_heads.Table) -> Place | None:
    """Returns which column names images, and where they are; None if no image of the first rows is found."""
    return next(find_places(survey, at, table), None)


def find_places(survey: FolderProbe, at: str, table: table_heads.Table) -> Iterator[Place]:
    """Yields all folders that have images of the first column that names some, the nearest one first."""
    home = survey.look(posixpath.dirname(table.path))
    top = survey.look(at)
    folders = [home, top, *(survey.look(home.below(name)) for name in home.folders[:_NUM_FOLDERS])]
    folders += [survey.look(top.below(name)) for name in top.folders[:_NUM_FOLDERS]]
    near = [(each, name) for each in folders[2:12] for name in likely_first(each, _NUM_INNER)]
    folders += [survey.look(each.below(name)) for each, name in near]
    unique = {folder.path: folder for folder in folders}
    for column in sorted(table.columns, key=_rank_of_image):
        values = [each for each in spread(table.values(column), _NUM_VALUES)[:_NUM_VALUES] if len(each) < 1000]
        if not values or len({*values}) < len(values) / 6:
            continue
        if all(map(table_heads.is_number, values)) and not _IMAGE_WORD.search(column):  # 1, 2, 3 may be anything
            continue
        found = {path: [_look_up(survey, folder, value) for value in values] for path, folder in unique.items()}
        numbers = {path: sum(known is not None for known in each) for path, each in found.items()}
        singles = [
            Place(column, path, any(found[path]), number, len(values)) for path, number in numbers.items() if number
        ]
        spread_out = _find_spread(found, singles[0]) if singles else None
        likely = [each for each in singles if each.found >= len(values) / 4]
        if spread_out is not None:
            yield spread_out
        if spread_out is not None or likely:
            yield from likely[spread_out is not None :]
            return


def _find_spread(found: Mapping[str, Sequence[bool | None]], single: Place) -> Place | None:
    """Returns the place of images that lie in several folders of one folder, each image in one of them."""
    holders = {path: each for path, each in found.items() if any(known is not None for known in each)}
    times = [sum(known is not None for known in each) for each in zip(*holders.values())]
    number = sum(each == 1 for each in times)
    above = {posixpath.dirname(path) for path in holders}
    if len(holders) < 2 or len(above) != 1 or number <= single.found or number < _SHARE_SPREAD * len(times):
        return None
    return single._replace(
        folder=above.pop(), found=number, inside=tuple(sorted(posixpath.basename(path) for path in holders))
    )


def _look_up(survey: FolderProbe, folder: Folder, value: str) -> bool | None:
    """Returns whether a value has the extension of the image that it names; None if there is no such image."""
    path = posixpath.normpath(value)
    if path.startswith(("/", "..")) or ":/" in path:
        return None
    *above, base = path.split("/")
    if above and above[0] not in folder.folders:
        return None
    holder = survey.look("/".join([*filter(None, [folder.path]), *above])) if above else folder
    if base in holder.files and table_heads.is_image(base):
        return True
    return False if base in holder.stems else None


def _rank_of_image(name: str) -> int:
    return _IMAGE_NAMES.index(name.lower()) if name.lower() in _IMAGE_NAMES else len(_IMAGE_NAMES)


def note_on_missing(survey: FolderProbe, path: str) -> str:
    """Returns what to do about a table whose images are not found; "" if it does not seem to name images."""
    return next(_notes_on_missing(survey, path, _IMAGE_NAMES), "")


def notes_on_tables(survey: FolderProbe) -> list[str]:
    """Returns notes on the tables of a folder that name images, if these were not found."""
    names = [name for name in survey.look().ending(*SUFFIXES) if split_meant(name) != "test"][:MAX_TABLES]
    return [note for name in names for note in _notes_on_missing(survey, name)]


def _notes_on_missing(survey: FolderProbe, path: str, usual: Sequence[str] = ()) -> Iterator[str]:
    """Yields a note for the first column with names of images, or with one of the `usual` names."""
    table = table_heads.read_table(survey, path)
    for column in sorted(table.columns, key=_rank_of_image) if table is not None else ():
        first = next(iter(table.values(column)), "") if table is not None else ""
        if table_heads.is_image(first) or (first and column.lower() in usual):
            yield (
                f"{path} names images in its column {column!r}, such as {first!r}, but the folders that were looked "
                "into do not have them: set source.manifest.root to the folder that has them, with "
                f"--config kaggle --set source.manifest.path={path} --set source.manifest.image={column}"
            )
            return
