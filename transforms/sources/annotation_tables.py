"""Lists the images in annotation files that hold the objects of many images each: COCO's JSON, CSV.

The images and objects of a file are held in tables that take a few bytes per object.
"""

from __future__ import annotations

import array
import dataclasses
import posixpath
import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources import files, image_source, input_places, table_rows

# Kinds of files that are skipped and counted, beside the objects that become none.
NOT_ANNOTATED = "not_in_annotations"
NO_OBJECTS = "without_objects"

_HEAD_BYTES = 512


class AnnotatedSplit(NamedTuple):
    """A split: its annotation file and the folder of its images."""

    name: str
    annotations: str  # address
    folder: str  # path below the source's root; "" is the root


class Folders:
    """Finds files in folders; lists each folder once, because 118,000 requests would take longer than one listing."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, storage.Entry]] = {}
        self._used: dict[str, set[str]] = {}
        self._stems: dict[str, dict[str, list[str]]] = {}

    def find(self, folder: str, name: str) -> storage.Entry | None:
        """Returns the entry of a file; None if there is none.

        Raises:
            OSError: if the folder cannot be listed.
        """
        if folder not in self._files:
            try:
                entries = {entry.name: entry for entry in storage.storage_of(folder).list_directory(folder)}
            except (FileNotFoundError, NotADirectoryError):
                entries = {}
            self._files[folder], self._used[folder] = entries, set()
        self._used[folder].add(name)
        return self._files[folder].get(name)

    def named(self, folder: str, stem: str) -> list[str]:
        """Returns the images in a folder with a name without extension, perhaps with zeros before a number."""
        if folder not in self._stems:
            self.find(folder, "")
            stems = self._stems[folder] = {}
            for name in filter(_is_image, self._files[folder]):
                own = posixpath.splitext(name)[0]
                for each in {own, own.lstrip("0") if own.isdecimal() else own}:
                    stems.setdefault(each, []).append(name)
        return self._stems[folder].get(stem, [])

    def unused_images(self, folder: str) -> list[storage.Entry]:
        """Returns the images in a folder that nobody asked for, which then count as used."""
        self.find(folder, "")
        found = [entry for entry in self._files[folder].values() if _is_image(entry.name)]
        found = [entry for entry in found if entry.name not in self._used[folder] and entry.kind == storage.FILE]
        self._used[folder].update(entry.name for entry in found)
        return sorted(found)

    def unused(self) -> Counter[str]:
        """Counts the images in these folders that nobody asked for, and hidden files, by kind."""
        skipped: Counter[str] = Counter()
        for folder, entries in self._files.items():
            for entry in entries.values():
                if entry.name in self._used[folder] or entry.kind == storage.DIRECTORY:
                    continue
                if entry.name.startswith("."):
                    skipped[files.HIDDEN] += 1
                elif _is_image(entry.name):
                    skipped[NOT_ANNOTATED] += 1
        return skipped


def _is_image(name: str) -> bool:
    return not name.startswith(".") and image_formats.extension_of(name) in files.IMAGE_EXTENSIONS


def _mask_at(uri: str, folders: Folders) -> elements.Mask:
    """Returns the mask at an address.

    Raises:
        BadRowError: if there is none.
    """
    entry = folders.find(*posixpath.split(uri))
    if entry is None or entry.kind != storage.FILE:
        raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no mask {uri!r}")
    return elements.Mask(uri, entry.size, entry.version)


@dataclasses.dataclass(frozen=True)
class AnnotationTableSource(image_source.ImageSource):
    """Annotation files, each with the objects of many images, and the folders of these images below `root`."""

    root: str
    splits: tuple[AnnotatedSplit, ...]
    without_objects: bool = True
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    unread: tuple[str, ...] = ()  # paths of folders whose images are in no split, and are counted

    OPTION: ClassVar[str]  # section of the config, for errors
    KEY: ClassVar[str] = "annotations"  # names the annotation files in it
    ON_REPEATED_KEY: ClassVar[str]  # see SourceFacts

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that `values_of` returns."""
        raise NotImplementedError

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(
            columns=self.columns, notes=input_places.notes_on_unread(self.unread), on_repeated_key=self.ON_REPEATED_KEY
        )

    def read(self, split: AnnotatedSplit, found: image_source.ListingBuilder) -> tuple[ImageTable, ObjectTable]:
        """Reads the annotation file of a split; counts what becomes no object in `found`.

        Raises:
            AnnotationFileError: if the file cannot be used at all.
            OSError: if it cannot be read.
        """
        raise NotImplementedError

    def check_head(self, split: AnnotatedSplit, head: bytes) -> None:
        """Checks the first bytes of an annotation file.

        Raises:
            ConfigError: if they are clearly of something else.
        """
        raise NotImplementedError

    def values_of(self, images: ImageTable, number: int, objects: Objects) -> tuple[Any, ...]:
        """Returns the values of the columns that the source gives for an image."""
        raise NotImplementedError

    def mask_of(self, split: AnnotatedSplit, images: ImageTable, number: int) -> str | None:
        """Returns the address of the mask of an image; None if the source has no masks."""
        return None

    def find_name(self, split: AnnotatedSplit, name: str, folders: Folders) -> str:
        """Returns the path of the image that an annotation file names, below the folder of its split."""
        return name

    def unnamed(self, split: AnnotatedSplit, folders: Folders) -> Iterator[elements.ImageRef]:
        """Yields the images of a split that its file does not name; by default they are skipped and counted."""
        return iter(())

    def check(self) -> None:
        """Checks that the files and folders exist.

        Raises:
            ConfigError: if one is missing, or is clearly something else.
        """
        for split in self.splits:
            self._check_annotations(split)
            if input_places.kind_of(folder := self._folder(split)) != storage.DIRECTORY:
                raise errors.ConfigError(
                    "images-not-folder",
                    f"{self.OPTION}.images.{split.name}: {folder!r} is not a folder; give the one of that split's "
                    "images, below --input",
                )

    def _check_annotations(self, split: AnnotatedSplit, key: str = "") -> None:
        uri, key = split.annotations, key or self.KEY
        problem = f"{self.OPTION}.{key}.{split.name}: {uri!r} cannot be read"
        with errors.explained("annotations-unreadable", problem, "; give its path below --input"):
            head = storage.storage_of(uri).read(uri, 0, _HEAD_BYTES)
        self.check_head(split, head)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the images of each split in the order of its file."""
        found, folders = image_source.ListingBuilder(), Folders()
        named: dict[int, tuple[bytes, str]] = {}  # names of classes by id, and the file that has each first
        for split in self.splits:
            try:
                yield from self._list_part(split, folders, found, named)
            except table_rows.MissingValueError as e:
                found.problems.append(f"{split.annotations!r}: {e}")
            except AnnotationFileError as e:
                found.problems.append(str(e))
            except OSError as e:
                found.problems.append(
                    f"the images or annotations of {split.name} cannot be read: {e}; they are "
                    f"{split.annotations!r} and {self._folder(split)!r}"
                )
        found.skipped.update(folders.unused())
        found.skipped.update(input_places.count_unread(self.root, self.unread))
        yield found.take()

    def _folder(self, split: AnnotatedSplit) -> str:
        return storage.join(self.root, split.folder) if split.folder else self.root

    def _list_part(
        self,
        split: AnnotatedSplit,
        folders: Folders,
        found: image_source.ListingBuilder,
        named: dict[int, tuple[bytes, str]],
    ) -> Iterator[image_source.Listing]:
        images, objects = self.read(split, found)
        for number, text in objects.names.items():
            first, file = named.setdefault(number, (text, split.annotations))
            if first != text:
                raise AnnotationFileError(
                    f"the class {number} is {first.decode('utf-8', 'replace')!r} in {file!r} and "
                    f"{text.decode('utf-8', 'replace')!r} in {split.annotations!r}: make both the same, or convert "
                    "each file alone"
                )
        for number, name in enumerate(images.names):
            try:
                images.names[number] = name = self.find_name(split, name, folders)
                # Of an image with a fault, too: its file must not count as one that nobody asked for.
                entry = folders.find(*posixpath.split(self._locate(split, name)))
                if number in images.faults:
                    raise table_rows.BadRowError(*images.faults[number])
                ref = self._reference(split, number, images, entry)
                of_image = objects.of(number)
                if not of_image.labels and not self.without_objects:
                    found.skipped[NO_OBJECTS] += 1
                    continue
                if (mask := self.mask_of(split, images, number)) is not None:
                    ref = ref._replace(mask=_mask_at(mask, folders))
                values = self.values_of(images, number, of_image)
                cells = dict(zip(self.fields.needed, images.cells[number]))
                found.refs.append(self.fields.fill(ref._replace(columns=values), cells))
            except table_rows.BadRowError as e:
                found.rejects.append(self._reject(split, number, name, e))
            if found.is_full:
                yield found.take()
        for ref in self.unnamed(split, folders):
            found.refs.append(ref)
            if found.is_full:
                yield found.take()

    def _reject(self, split: AnnotatedSplit, number: int, name: str, error: table_rows.BadRowError) -> elements.Reject:
        key = posixpath.join(split.folder, name) if name else f"{split.name} image {number}"
        uri = storage.join(self._folder(split), name.lstrip("/")) if name else split.annotations
        return elements.Reject(key, uri, "list", error.reason, f"image {number} of {split.annotations}: {error.detail}")

    def _locate(self, split: AnnotatedSplit, name: str) -> str:
        path = posixpath.normpath(name)
        if table_rows.is_absolute(name) or path.split("/")[0] == "..":
            raise table_rows.BadRowError(
                elements.Reason.OUTSIDE_ROOT, f"file_name {name!r} leaves the folder of images"
            )
        return storage.join(self._folder(split), path)

    def _reference(
        self, split: AnnotatedSplit, number: int, images: ImageTable, entry: storage.Entry | None
    ) -> elements.ImageRef:
        uri = self._locate(split, images.names[number])
        if entry is None or entry.kind == storage.BROKEN_LINK:
            raise table_rows.BadRowError(
                elements.Reason.NOT_FOUND,
                f"there is no file {uri!r}; if the images are elsewhere, name their folder in {self.OPTION}.images",
            )
        if entry.kind != storage.FILE:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({entry.kind})")
        return elements.ImageRef(
            posixpath.join(split.folder, posixpath.normpath(images.names[number])),
            uri,
            entry.size,
            entry.version,
            position=number,
            split=split.name,
            expected=(images.heights[number], images.widths[number]) if images.heights[number] else None,
        )


# --- tables of images and objects -------------------------------------------------------------------------------------

SHOWN = 80  # characters of a bad value in an error
_MAX_SIDE_PX = 1_000_000

_REPR = reprlib.Repr()  # for values that may be long or deeply nested
_REPR.maxlist = _REPR.maxdict = 4


class AnnotationFileError(ValueError):
    """The annotation file cannot be used at all."""


class ImageTable:
    """The images of a file, in its order."""

    def __init__(self, is_sized: bool = True) -> None:
        self._is_sized = is_sized  # false: the file does not state the sizes of the images
        self.names: list[str] = []
        self.ids: list[int | str] = []
        self.heights = array.array("l")  # pixels
        self.widths = array.array("l")
        self.cells: list[tuple[Any, ...]] = []  # cells of the wanted columns
        self.numbers: dict[int | str, int] = {}  # by id
        self.captions: dict[int, list[bytes]] = {}  # by number
        self.panoptic: dict[int, tuple[str, bytes]] = {}  # by number: name of the PNG, and its packed segments
        self.documents: dict[int, bytearray] = {}  # by number: the objects of an image, which its reader parses
        self.faults: dict[int, tuple[elements.Reason, str]] = {}  # by number: why the image cannot be used

    def add(self, entry: Any, columns: Sequence[str]) -> None:
        """Adds an image; notes a fault if it cannot be used."""
        number = len(self.names)
        fields = entry if isinstance(entry, dict) else {}
        name, image_id = fields.get("file_name"), whole(fields.get("id"))
        if name is None and isinstance(url := fields.get("coco_url"), str):  # LVIS names images so
            name = "/".join(url.split("/")[-2:])
        size = whole(fields.get("height")), whole(fields.get("width"))
        self.names.append(name if isinstance(name, str) else "")
        self.ids.append(image_id if isinstance(image_id, (int, str)) else "")
        for sides, side in zip((self.heights, self.widths), size):
            sides.append(side if _is_side(side) else 0)
        self.cells.append(tuple(fields.get(column) for column in columns))
        if not isinstance(name, str) or not name:
            self.faults[number] = elements.Reason.BAD_ROW, f"file_name is {show(name)}, expected a name"
        elif not isinstance(image_id, (int, str)) or image_id == "":
            self.faults[number] = elements.Reason.BAD_ROW, f"id is {show(image_id)}, expected an integer or a text"
        elif self._is_sized and not all(map(_is_side, size)):
            self.faults[number] = elements.Reason.BAD_VALUE, f"height and width are {show(size)}, expected pixels"
        if isinstance(image_id, (int, str)):
            self._note_id(image_id, number)

    def _note_id(self, image_id: int | str, number: int) -> None:
        first = self.numbers.setdefault(image_id, number)
        if first != number:  # the objects of this id may belong to either image
            detail = f"two images have the id {image_id!r}: {self.names[first]}, {self.names[number]}"
            self.faults[first] = self.faults[number] = elements.Reason.BAD_VALUE, detail


class Objects(NamedTuple):
    """The objects of one image, as its record stores them."""

    xmin: tuple[float, ...]
    xmax: tuple[float, ...]
    ymin: tuple[float, ...]
    ymax: tuple[float, ...]
    labels: tuple[int, ...]
    texts: tuple[bytes, ...]
    areas: tuple[float, ...]
    crowds: tuple[int, ...]
    masks: tuple[bytes, ...]  # packed; empty unless masks are stored
    keypoints: tuple[float, ...] = ()  # x, y and visibility of each keypoint of each object, one after the other


class ObjectTable:
    """The objects of all images of a file: 53 bytes for each, and its mask."""

    def __init__(self, num_images: int, names: dict[int, bytes], num_keypoints: int = 0):
        self.names = names  # names of the categories, by id
        self._keypoints = array.array("f")
        self._keypoint_values = 3 * num_keypoints  # names of the keypoints of each object
        self._newest = array.array("q", [-1]) * num_images  # number of the last object of each image; -1 for none
        self._before = array.array("q")  # number of the object before it of the same image
        self._labels = array.array("q")
        self._numbers = array.array("f")  # five per object: xmin, xmax, ymin, ymax, area
        self._crowds = array.array("b")
        self._masks = bytearray()
        self._mask_ends = array.array("Q", [0])

    def add_image(self) -> None:
        """Makes room for another image, without objects."""
        self._newest.append(-1)

    def add(
        self,
        image: int,
        label: int,
        numbers: Sequence[float],
        is_crowd: int,
        mask: bytes,
        keypoints: Sequence[float] = (),
    ) -> None:
        """Adds an object of the image with the number `image`."""
        self._keypoints.extend(keypoints)
        self._before.append(self._newest[image])
        self._newest[image] = len(self._labels)
        self._labels.append(label)
        self._numbers.extend(numbers)
        self._crowds.append(is_crowd)
        self._masks += mask
        self._mask_ends.append(len(self._masks))

    def of(self, image: int) -> Objects:
        """Returns the objects of an image in the order of the file."""
        found = []
        number = self._newest[image]
        while number >= 0:
            found.append(number)
            number = self._before[number]
        found.reverse()
        xmin, xmax, ymin, ymax, areas = (tuple(self._numbers[5 * each + i] for each in found) for i in range(5))
        labels = tuple(self._labels[each] for each in found)
        texts = tuple(self.names[label] for label in labels)
        crowds = tuple(self._crowds[each] for each in found)
        masks = tuple(bytes(self._masks[self._mask_ends[each] : self._mask_ends[each + 1]]) for each in found)
        size = self._keypoint_values
        keypoints = tuple(value for each in found for value in self._keypoints[size * each : size * (each + 1)])
        return Objects(xmin, xmax, ymin, ymax, labels, texts, areas, crowds, masks, keypoints)


def whole(value: Any) -> Any:
    """Converts a float such as 3.0 to an integer, and a bool to None; returns other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None if isinstance(value, bool) else value


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and 0 < value <= _MAX_SIDE_PX


def show(value: Any) -> str:
    """Returns the text of a value, cut after `SHOWN` characters."""
    text = _REPR.repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


# --- nesting of JSON --------------------------------------------------------------------------------------------------

MAX_DEPTH = 1_000  # COCO's format has 6 levels
TOO_DEEP = f"lists or objects nested more than {MAX_DEPTH:,} deep"

_CHUNK_BYTES = 1 << 20
_OPENING, _CLOSING, _QUOTE = b"[{", b"]}", b'"'
_OTHERS = bytes(each for each in range(256) if each not in _OPENING + _CLOSING + _QUOTE)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class DepthMeter:
    """Measures the nesting of JSON that is read in pieces."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._cut = 0, 0, b""

    def is_too_deep(self, chunk: bytes) -> bool:
        """Returns whether lists and objects are nested deeper than `MAX_DEPTH` in the next piece of the JSON."""
        import numpy as np

        chunk, self._cut = self._cut + chunk, b""
        if b"\\" in chunk:
            chunk = _ESCAPE.sub(b"", chunk)
            self._cut = b"\\" if chunk.endswith(b"\\") else b""
        marks = np.frombuffer(chunk.translate(None, _OTHERS), np.uint8)
        if not len(marks):
            return False
        steps = np.zeros(256, np.int8)
        steps[list(_OPENING)], steps[list(_CLOSING)] = 1, -1
        texts = (np.cumsum(marks == _QUOTE[0]) + self._in_text) & 1  # 1 from the opening quote on
        levels = self._depth + np.cumsum(np.where(texts, 0, steps[marks]), dtype=np.int64)
        self._depth, self._in_text = int(levels[-1]), int(texts[-1])
        return bool(levels.max() > MAX_DEPTH)


def check_depth(file: Any, uri: str) -> None:
    """Checks the nesting of a JSON file, and leaves its position anywhere.

    Args:
        file: opened in binary mode.
        uri: of the file, for the error.

    Raises:
        AnnotationFileError: if it is nested deeper than `MAX_DEPTH`.
    """
    file.seek(0)
    meter = DepthMeter()
    while chunk := file.read(_CHUNK_BYTES):
        if meter.is_too_deep(chunk):
            raise AnnotationFileError(f"{uri!r} holds {TOO_DEEP}, so it is no annotation file")
