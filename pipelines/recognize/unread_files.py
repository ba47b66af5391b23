"""Files that no preset reads by itself, in one line for each kind: what they are, how many, what to do with them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator
from typing import NamedTuple

from imagebeam import plural
from imagebeam.transforms.sources import files as files_lib
from imagebeam.transforms.sources import folder_probe
from imagebeam.transforms.sources.folder_probe import Folder, FolderProbe, name_some

_VIDEO = (
    "video, which is not read: save its frames as images (ffmpeg -i VIDEO frames/%06d.png)",
    "videos, which are not read: save their frames as images (ffmpeg -i VIDEO frames/%06d.png)",
)
_MEDICAL = (
    "medical image, which is not read: save it as NIfTI",
    "medical images, which are not read: save them as NIfTI",
)
_TO_BE_MEASURED = (
    "set image.dtype: float32 and image.encode: raw, or image.range, and image.frames: each for volumes "
    "(docs/recipes/medical.md)"
)
_SLICES = (
    f"file of DICOM or NIfTI: to store its slices, {_TO_BE_MEASURED}",
    f"files of DICOM or NIfTI: to store their slices, {_TO_BE_MEASURED}",
)
_LMDB = (
    "LMDB database, which is not read: save its images as files, and its labels as a table of them",
    "LMDB databases, which are not read: save their images as files, and their labels as a table of them",
)
_ARROW = (
    "Arrow file, as save_to_disk of Hugging Face's datasets writes it, which is not read: save it by to_parquet",
    "Arrow files, as save_to_disk of Hugging Face's datasets writes them, which are not read: save them by to_parquet",
)
_ARCHIVE = ("archive: unpack it", "archives: unpack them")
_UNREAD = {  # by the end of the name, in words: of one file, and of several
    **dict.fromkeys((".mp4", ".m4v", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv"), _VIDEO),
    **dict.fromkeys((".mha", ".mhd", ".nrrd"), _MEDICAL),
    **dict.fromkeys((".dcm", ".dicom", ".nii", ".nii.gz"), _SLICES),
    **dict.fromkeys((".7z", ".rar", ".xz", ".bz2"), _ARCHIVE),
    **dict.fromkeys(("data.mdb", ".lmdb"), _LMDB),
    ".arrow": _ARROW,
}
_TABLE = (
    "Parquet file in which no column of images was found: as a table of images beside it, take --config kaggle",
    "Parquet files in which no column of images was found: as tables of images beside them, take --config kaggle",
)
_TO_ARRAYS = "save the images as .npy, and the labels beside them (docs/recipes/arrays.md)"
_BINARY = (
    f"file of bare numbers, whose shape nothing says: {_TO_ARRAYS}",
    f"files of bare numbers, whose shapes nothing says: {_TO_ARRAYS}",
)
_UNKNOWN = {  # unless a preset reads them
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz"), _ARCHIVE),
    ".parquet": _TABLE,
    ".bin": _BINARY,
}
_DICOM = b"DICM"  # at byte 128; its files often have no extension
_POINTER = b"version https://git-lfs"
_MAX_POINTER_BYTES = 300
_MAX_KINDS = 6  # extensions of files of which one is read, to see if it is a pointer
_MAX_UNNAMED = 4  # folders of files without extension of which one is read


def kind_of(name: str) -> tuple[str, str] | None:
    """Returns what a file that no preset reads is, in words: of one file, and of several; None for other files."""
    return next((kind for ending, kind in _UNREAD.items() if name.lower().endswith(ending)), None)


def describe(probe: FolderProbe, is_known: bool) -> Iterator[str]:
    """Yields a line for each kind of unread files in the folders that were looked at.

    Args:
        probe: of the input.
        is_known: whether a preset may read it; otherwise archives and Parquet files in it are such files, too.
    """
    yield from _pointers(probe)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for folder in probe.seen():
        for name in folder.files:
            kind = kind_of(name)
            if not is_known and (not folder.path or name.endswith(".bin")):
                kind = kind or _UNKNOWN.get(folder_probe.extension_of(name))
            if kind is not None:
                counts[kind] += 1
    for folder in [each for each in probe.seen() if _unnamed(each)][:_MAX_UNNAMED]:
        if probe.head(folder.below(_unnamed(folder)[0]), 132)[128:] == _DICOM:
            counts[_SLICES] += len(_unnamed(folder))
    more = "" if probe.is_all_seen else " or more"
    yield from (
        f"{number:,}{more} {several if number > 1 or more else one}" for (one, several), number in counts.items()
    )


def _unnamed(folder: Folder) -> list[str]:
    """Returns the files of a folder that have neither an extension nor images beside them."""
    return [] if folder.images else [name for name, size in folder.files.items() if "." not in name and size >= 132]


def _pointers(probe: FolderProbe) -> Iterator[str]:
    """Yields a line for each extension whose first small file is a pointer of Git LFS."""
    small: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for folder in probe.seen():
        for name, size in folder.files.items():
            if 0 < size < _MAX_POINTER_BYTES and (extension := folder_probe.extension_of(name)):
                small[extension].append(folder.below(name))
    first = sorted(small, key=lambda extension: extension[1:] not in files_lib.IMAGE_EXTENSIONS)
    for extension in first[:_MAX_KINDS]:
        path, *others = small[extension]
        if probe.head(path, 64).startswith(_POINTER):
            what = "an image" if extension[1:] in files_lib.IMAGE_EXTENSIONS else "the file"
            more = f" ({plural.count(len(others), f'other {extension} file')} of its size)" if others else ""
            yield f"{path} is a pointer of Git LFS, not {what}: run git lfs pull in the clone first{more}"


# --- files that a reading leaves out ----------------------------------------------------------------------------------


_SPLITS_IN_LISTS = (
    "set split={by: lists, lists: {train: LIST, test: LIST}} if lists divide the images, where each line is the end of "
    "the path of one"
)
_MAPS = (".pfm", ".flo", ".exr")
_NUM_KINDS = 6  # of files that nothing is known of, in one line


class Line(NamedTuple):
    """One kind of files that a reading leaves out, in words."""

    text: str
    is_doubt: bool = False  # for a reading of more than images; for one of images alone each line is
    paths: Collection[str] = ()
    names: Collection[str] = ()  # some of the images that they name
    names_splits: bool = False  # whether the files may list the images of splits

    def of_splits(self, is_taken: bool) -> Line:
        """Returns the line on lists of splits, which are a doubt unless they are taken."""
        return self._replace(text=f"{self.text}: {_SPLITS_IN_LISTS}", is_doubt=not is_taken)


def part_of(folder: Folder, names: Collection[str]) -> Folder:
    """Returns a folder with some of its files."""
    return dataclasses.replace(folder, files={name: size for name, size in folder.files.items() if name in names})


class Seen(NamedTuple):
    """The folders that a probe has seen, each with a part of its files."""

    read: list[Folder]  # with the images that are read
    images: list[Folder]  # with the images that are left out
    files: list[Folder]  # with the other files that are left out

    def without(self, paths: Collection[str]) -> Seen:
        """Returns it without some of the other files."""
        left = ([n for n in folder.files if folder.below(n) not in paths] for folder in self.files)
        return self._replace(files=list(map(part_of, self.files, left)))


def workbooks(seen: Seen) -> Iterator[Line]:
    """Yields a line for each kind of files that may say what the images show, or their pixels."""
    maps = [folder.below(name) for folder in seen.files for name in folder.ending(*_MAPS)]
    if maps:
        text = (
            f"{plural.count(len(maps), 'file')} with numbers of pixels ({name_some(maps)}), such as depth or flow, not "
            "read: save them as TIFFs of float32, and each is read as an image, or beside one (docs/recipes/bands.md)"
        )
        yield Line(text, paths=maps)
    for kind, suffixes in (
        ("spreadsheet", (".xlsx", ".xls", ".ods")),
        (".mat file", (".mat",)),
        ("compressed table", (".csv.gz", ".tsv.gz", ".jsonl.gz", ".json.gz")),
    ):
        paths = [folder.below(name) for folder in seen.files for name in folder.ending(*suffixes)]
        if len(paths) == 1:
            yield Line(f"{paths[0]} is not read: if it says what the images show, save it as CSV", paths=paths)
        elif paths:
            shown = f"{plural.count(len(paths), kind)} ({name_some(paths)})"
            yield Line(f"{shown} are not read: if they say what the images show, save them as CSV", paths=paths)


def rest(seen: Seen, named: Collection[str], said: str) -> Iterator[str]:
    """Yields one line for all files that no other line names."""
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for folder in seen.files:
        for name in folder.files:
            path = folder.below(name)
            if path not in named and path not in said and kind_of(name) is None:
                groups[folder_probe.extension_of(name)].append(path)
    shown = []
    for kind, (first, *others) in groups.items():
        more = plural.count(len(others), f"other {kind} file" if kind else "other file") if others else ""
        shown.append(f"{first} and {more}" if more else first)
    if shown:
        yield f"also there, and not read: {name_some(shown, _NUM_KINDS)}"
