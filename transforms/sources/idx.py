"""Images in IDX files, the format of MNIST: for each split a file of images and one of labels, plain or .gz.

Source: the description of the format at the end of https://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import io
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam import errors, plural, storage
from imagebeam.transforms import elements
from imagebeam.transforms.arrays import unpacked_content
from imagebeam.transforms.packed import broken_content, gzip_content
from imagebeam.transforms.sources import image_source, table_rows

LABEL = "label"  # the only column
_UINT8 = 0x08
_OTHER_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_MAGIC_BYTES = 4  # two zeros, the type, the number of dimensions; then each dimension as 4 bytes, big-endian
_MAX_CHANNELS = 4
_AFTER_POSITION = elements.ImageRef._fields.index("position") + 1  # fields from here on depend on the label alone


class IdxFile(NamedTuple):
    """One IDX file that was checked to be complete."""

    uri: str
    version: int
    shape: tuple[int, ...]  # of its array of bytes

    @property
    def start(self) -> int:
        """Byte offset of the array."""
        return _MAGIC_BYTES + 4 * len(self.shape)


class IdxSplit(NamedTuple):
    """The files of one split."""

    name: str
    images: IdxFile
    labels: IdxFile | None


@dataclasses.dataclass(frozen=True)
class IdxSource(image_source.ImageSource):
    """Splits whose images all have one shape."""

    splits: tuple[IdxSplit, ...]
    fields: table_rows.RowFields = table_rows.NO_FIELDS

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height and width in pixels, and channels; the same for all images."""
        return _image_shape(self.splits[0].images)

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(shape=self.image_shape)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields a reference for each image, in the order of the files."""
        yield from image_source.list_parts(
            (self._list_split(split), f"the labels of the split {split.name}") for split in self.splits
        )

    def _list_split(self, split: IdxSplit) -> Iterator[elements.ImageRef | elements.Reject]:
        images, size = split.images, math.prod(split.images.shape[1:])
        unlabelled = elements.ImageRef("", images.uri, split=split.name)
        labels = bytes(images.shape[0]) if split.labels is None else _read_array(split.labels)
        # once per label, at most 256 times
        filled = {label: self._fill(unlabelled, split, label) for label in set(labels)}
        uri, version, start, new_ref = images.uri, images.version, images.start, elements.new_ref
        for position, label in enumerate(labels):
            key, known = f"{split.name}/{position:05d}", filled[label]
            if isinstance(known, table_rows.BadRowError):
                yield elements.Reject(key, uri, "list", known.reason, known.detail)
            else:
                yield new_ref((key, uri, size, version, start + position * size, size, position, *known))

    def _fill(self, ref: elements.ImageRef, split: IdxSplit, label: int) -> tuple[Any, ...] | table_rows.BadRowError:
        try:
            return self.fields.fill(ref, {} if split.labels is None else {LABEL: label})[_AFTER_POSITION:]
        except table_rows.BadRowError as e:
            return e


def open_source(
    root: str, images: Mapping[str, str], labels: Mapping[str, str], fields: table_rows.RowFields = table_rows.NO_FIELDS
) -> IdxSource:
    """Returns the source of the files that globs below `root` name; checks every file, a .gz file to its end.

    Args:
        root: a folder.
        images: globs of the files of images, by split.
        labels: globs of the files of labels, by split.
        fields: what the label becomes.

    Raises:
        ConfigError: if a file is missing, incomplete or of another format, or files contradict each other.
    """
    unknown = [name for name in fields.needed if name != LABEL]
    if unknown:
        raise errors.ConfigError(f"IDX files have no column {unknown[0]!r}; their one column is {LABEL!r}")
    if not images or set(labels) - set(images):
        names = ", ".join(labels) or "none"
        raise errors.ConfigError(f"source.idx.labels names the splits {names}, source.idx.images has not all of them")
    folder, splits = _GlobFolder(root), []
    for name, glob in images.items():
        with_images = _open(folder.find(f"source.idx.images.{name}", glob), "images", (3, 4))
        with_labels = None
        if name in labels:
            with_labels = _open(folder.find(f"source.idx.labels.{name}", labels[name]), "labels", (1,))
            if with_labels.shape != with_images.shape[:1]:
                raise errors.ConfigError(
                    f"{with_labels.uri!r} holds {with_labels.shape[0]:,} labels, {with_images.uri!r} "
                    f"{plural.count(with_images.shape[0], 'image')}: they are not of one split; correct "
                    "source.idx.images or labels"
                )
        elif fields.needed:
            raise errors.ConfigError(
                f"source.idx.labels names no file for the split {name}; add it, or set label.by: none"
            )
        splits.append(IdxSplit(name, with_images, with_labels))
    _check_shapes(splits)
    return IdxSource(tuple(splits), fields)


def _check_shapes(splits: list[IdxSplit]) -> None:
    first = splits[0].images
    for split in splits:
        height, width, channels = shape = _image_shape(split.images)
        if not height or not width or not 1 <= channels <= _MAX_CHANNELS:
            raise errors.ConfigError(
                f"{split.images.uri!r} says images of {_as_text(shape)}; expected a height, a width, and 1 to "
                f"{_MAX_CHANNELS} channels where there are four dimensions"
            )
        if shape != _image_shape(first):
            raise errors.ConfigError(
                f"images of {_as_text(_image_shape(first))} in {first.uri!r}, of {_as_text(shape)} in "
                f"{split.images.uri!r}: all must have one shape; name them in source.idx.images of two runs"
            )


def _image_shape(images: IdxFile) -> tuple[int, int, int]:
    _, height, width, *channels = images.shape
    return height, width, channels[0] if channels else 1


def _as_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


class _GlobFolder:
    """Finds files by globs below a folder; lists each folder once."""

    def __init__(self, root: str):
        self._root = root
        self._names: dict[str, list[str]] = {}  # of files, by folder

    def find(self, option: str, glob: str) -> str:
        """Returns the address of the one file that a glob matches; prefers a plain file to its .gz.

        Raises:
            ConfigError: if the glob matches no file, or several.
        """
        below, _, pattern = glob.rpartition("/")
        folder = storage.join(self._root, below) if below else self._root
        if folder not in self._names:
            self._names[folder] = self._list(option, folder)
        found = fnmatch.filter(self._names[folder], pattern)
        plain = set(found)
        found = [
            name
            for name in found
            if not (gzip_content.has_gzip_name(name) and name.removesuffix(gzip_content.SUFFIX) in plain)
        ]
        if len(found) != 1:
            names = f"several: {', '.join(found)}; name one" if found else "none; check --input"
            raise errors.ConfigError(f"{option}, {glob!r}, must name one file in {folder!r}, it matches {names}")
        return storage.join(folder, found[0])

    @staticmethod
    def _list(option: str, folder: str) -> list[str]:
        try:
            entries = storage.storage_of(folder).list_directory(folder)
            return sorted(entry.name for entry in entries if entry.kind == storage.FILE)
        except OSError as e:
            raise errors.ConfigError(
                f"{option}: {folder!r} is not a folder that can be listed ({e.strerror or e})"
            ) from e


def _open(uri: str, what: str, dimensions: tuple[int, ...]) -> IdxFile:
    """Checks that the file at `uri` is a complete IDX file of `what`, with one of the numbers of `dimensions`.

    Raises:
        ConfigError: if it is not.
    """
    try:
        version = storage.storage_of(uri).stat(uri).version
        with unpacked_content.open_content(uri) as file:
            head = file.read(_MAGIC_BYTES + 4 * max(dimensions))
            num_bytes = file.seek(0, io.SEEK_END)
    except broken_content.BrokenContentError as e:
        raise errors.ConfigError(f"{uri!r} {e.detail}") from e
    except OSError as e:
        detail = f"cannot be read ({e.strerror or e})"
        raise errors.ConfigError(f"{uri!r} {detail}") from e
    found = IdxFile(uri, version, _read_shape(uri, head, what, dimensions))
    expected = found.start + math.prod(found.shape)
    if num_bytes != expected:
        detail = "it was cut short; fetch it again" if num_bytes < expected else "the rest belongs to no image"
        raise errors.ConfigError(
            f"{uri!r} is of {num_bytes:,} bytes, and {_as_text(found.shape)} {what} with their header are "
            f"{expected:,}: {detail}"
        )
    return found


def _read_shape(uri: str, head: bytes, what: str, dimensions: tuple[int, ...]) -> tuple[int, ...]:
    if head.startswith(gzip_content.MAGIC):
        raise errors.ConfigError(f"{uri!r} is gzip, and its name does not end in {gzip_content.SUFFIX}; rename it")
    if len(head) >= _MAGIC_BYTES and head[:2] == b"\0\0" and head[2] in _OTHER_TYPES:
        raise errors.ConfigError(f"{uri!r} holds numbers of type {_OTHER_TYPES[head[2]]}; only uint8 can be taken")
    magics = [bytes((0, 0, _UINT8, number)) for number in dimensions]
    if head[:_MAGIC_BYTES] not in magics:
        expected = " or ".join(f"0x{magic.hex()}" for magic in magics)
        begins = f"0x{head[:_MAGIC_BYTES].hex()}" if head else "nothing"
        raise errors.ConfigError(f"{uri!r} is not an IDX file of {what}: it begins with {begins}, expected {expected}")
    num_dimensions = head[_MAGIC_BYTES - 1]
    sizes = head[_MAGIC_BYTES : _MAGIC_BYTES + 4 * num_dimensions]
    if len(sizes) < 4 * num_dimensions:
        raise errors.ConfigError(
            f"{uri!r} ends in its header, after {len(head)} bytes: it was cut short; fetch it again"
        )
    return struct.unpack(f">{num_dimensions}I", sizes)


def _read_array(file: IdxFile) -> bytes:
    """Reads the array of a file of labels.

    Raises:
        OSError: if the file cannot be read, or changed since it was checked.
    """
    length = math.prod(file.shape)
    if unpacked_content.is_packed(file.uri):
        return unpacked_content.unpack(file.uri, file.version).read(file.start, length)
    return storage.storage_of(file.uri).read(file.uri, file.start, length, version=file.version)
