"""The files with arrays at an address, the arrays in them, and what their names and shapes say."""

from __future__ import annotations

import contextlib
import fnmatch
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms.formats.arrays import array_source
from imagebeam.transforms.packed import array_files, found_array, packed_file
from imagebeam.transforms.sources import folder_probe, input_places, name_signs

SHOWN_ENDS = tuple(end for end in packed_file.ARRAYS if end.startswith("."))  # file extensions that errors name

_MAX_NAMED = 12
_MAX_FOLDERS = 100  # looked into below the one that is given
_SPLITS = {**name_signs.SPLIT_OF_WORD, "extra": "extra"}
ORDER = ["", "train", "validation", "test", "extra"]
_IMAGES = frozenset(("x", "image", "images", "img", "imgs", "data", "pixels"))
_LABELS = frozenset(("y", "label", "labels", "target", "targets"))
_CLASSES = frozenset(("names", "classes"))
_WORD = re.compile(r"[a-z]+|\d+")
_JOINED = re.compile(r"\b([xy])(train|test|val)")  # Xtrain, ytest


class Place(NamedTuple):
    """One array in a file."""

    uri: str
    version: int
    array: found_array.FoundArray

    @property
    def is_csv(self) -> bool:
        """Whether it is pixels in CSV, or a column of these."""
        return self.uri.endswith(packed_file.CSV)

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.array.shape))
        return f"{posixpath.basename(self.uri)}#{self.array.name} ({self.array.dtype}, {shape})"


class Role(NamedTuple):
    """The split and the kind of an array, as its name says them."""

    split: str = ""
    kind: str = ""  # images, labels, classes or ""


class Files:
    """The files with arrays at an address; each is looked into once."""

    def __init__(self, uri: str, looks_below: bool, has_idx: bool = False):
        self.uri = uri
        self._looks_below, self._has_idx = looks_below, has_idx
        self._arrays: dict[str, tuple[int, list[found_array.FoundArray]]] = {}
        self.is_folder = input_places.stat_input(uri, uri).kind == storage.DIRECTORY
        self.folder = uri if self.is_folder else posixpath.dirname(uri)
        self.names = self._list() if self.is_folder else [posixpath.basename(uri)]

    def _list(self) -> list[str]:
        names = list_files(self.uri)
        if not self._looks_below or _has_arrays(names):
            return names
        below = _list_folders(self.uri)
        if len(below) > _MAX_FOLDERS:
            return names
        found = {folder: list_files(storage.join(self.uri, folder)) for folder in below}
        holding = [folder for folder in below if _has_arrays(found[folder])]
        if len(holding) > 1:
            raise errors.ConfigError(
                "arrays-several-folders",
                f"--input {self.uri!r} has files with arrays in several folders, {', '.join(holding[:_MAX_NAMED])}: "
                "give one of them as --input",
            )
        if not holding:
            return names
        self.folder = storage.join(self.uri, holding[0])
        return found[holding[0]]

    def match(self, option: str, glob: str) -> list[str]:
        """Returns the addresses of the files that a glob matches, sorted; leaves out a .gz beside the plain file."""
        below, _, pattern = glob.rpartition("/")
        folder = storage.join(self.uri, below) if below else self.folder
        names = list_files(folder) if below else self.names
        matching = fnmatch.filter(names, pattern)
        plain = sorted({*matching} - {f"{name}{packed_file.GZIP_SUFFIX}" for name in matching})
        found = [storage.join(folder, name) for name in plain]
        if not found:
            raise errors.ConfigError("arrays-no-file", f"{option}: no file in {folder!r} matches {glob!r}")
        return found

    def address(self, name: str) -> str:
        """Returns the address of a file in the folder."""
        return storage.join(self.folder, name)

    def open(self, uri: str) -> list[Place]:
        """Returns the arrays of one file."""
        if uri not in self._arrays:
            format = array_files.format_of(uri)
            if format is None and self._has_idx:
                format = array_files.FORMATS[packed_file.IDX[0]]
            if format is None:
                raise errors.ConfigError(
                    "arrays-unknown-file",
                    f"{uri!r} is not known as a file with arrays; their names end in {', '.join(SHOWN_ENDS)}",
                )
            version = input_places.stat_input(uri, uri).version
            with explained(uri):
                self._arrays[uri] = version, format.list_arrays(uri, version)
        version, found = self._arrays[uri]
        return [Place(uri, version, array) for array in found]

    def all_arrays(self) -> Iterator[Place]:
        """Yields all arrays of all files."""
        for name in self.names:
            if name.endswith(SHOWN_ENDS):
                yield from self.open(self.address(name))


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turns the errors of a broken file into a ConfigError that names it."""
    try:
        yield
    except packed_file.BrokenContentError as e:
        raise errors.ConfigError("file-broken", f"{uri!r} {e.detail}") from e
    except OSError as e:
        raise errors.ConfigError("file-unreadable", f"{uri!r} cannot be read ({e.strerror or e})") from e


def _list_entries(folder: str) -> list[storage.Entry]:
    with errors.explained("folder-unreadable", f"{folder!r} is not a folder that can be listed"):
        return list(storage.storage_of(folder).list_directory(folder))


def list_files(folder: str) -> list[str]:
    """Returns the names of the files in a folder, sorted; raises ConfigError if it cannot be listed."""
    return sorted(entry.name for entry in _list_entries(folder) if entry.kind == storage.FILE)


def _list_folders(folder: str) -> list[str]:
    return sorted(entry.name for entry in _list_entries(folder) if entry.kind == storage.DIRECTORY)


def _has_arrays(names: Sequence[str]) -> bool:
    return any(f"/{name}".endswith(packed_file.ARRAYS) for name in names)


def role_of(name: str) -> Role:
    """Returns what the words of a name say."""
    words = _WORD.findall(_JOINED.sub(r"\1 \2", folder_probe.BEFORE_CAPITAL.sub(" ", name).lower()))
    split = next((_SPLITS[word] for word in words if word in _SPLITS), "")
    for kind, known in (("classes", _CLASSES), ("labels", _LABELS), ("images", _IMAGES)):
        if known & set(words):
            return Role(split, kind)
    return Role(split)


def axes_of(place: Place, wanted: array_source.Wanted) -> found_array.ImageAxes:
    """Returns how an array holds images: as the config says, or what leaves no doubt.

    Raises:
        ConfigError: if neither says it.
    """
    if wanted.shape is not None and len(place.array.shape) == 2:
        if wanted.layout is None and wanted.shape[2] > 1:
            raise errors.ConfigError(
                "arrays-open-layout",
                f"{place} is of images of one axis: set source.arrays.layout to the order of their values, NHWC (the "
                "channels of a pixel follow each other) or NCHW (planes)",
            )
        return found_array.ImageAxes(wanted.layout or found_array.ROWS, wanted.shape)
    if wanted.layout is not None:
        return found_array.ImageAxes(wanted.layout)
    axes = found_array.guess(place.array.shape, is_matlab=place.uri.endswith(packed_file.MATLAB))
    if axes is None:
        raise errors.ConfigError(
            "arrays-open-layout",
            f"{place} leaves open which of its axes are height, width and channels: set source.arrays.layout, for "
            "images of one axis source.arrays.shape; images in the columns of a matrix are not read: save it "
            "transposed",
        )
    return axes


def only_shape(shapes: Mapping[found_array.Shape, Place], option: str) -> found_array.Shape:
    """Returns the shape of all images, of shapes with an array of each; raises ConfigError if there are several."""
    if len(shapes) > 1:
        (first, one), (second, other) = list(shapes.items())[:2]
        raise errors.ConfigError(
            "arrays-shapes-differ",
            f"images of {' x '.join(map(str, first))} in {one}, of {' x '.join(map(str, second))} in {other}: all must "
            f"have one shape; name them in {option}.images of two runs",
        )
    return next(iter(shapes))
