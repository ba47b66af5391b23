"""Lists images with objects from annotation files in COCO's JSON format."""

from __future__ import annotations

import dataclasses
import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.images import object_masks
from imagebeam.transforms.sources import coco_json, files, image_source, table_rows

# Sources of the values in ImageRef.columns, in this order; MASKS follows only if masks are stored.
COLUMNS = (
    "image/source_id",
    "image/object/bbox/xmin",
    "image/object/bbox/xmax",
    "image/object/bbox/ymin",
    "image/object/bbox/ymax",
    "image/object/class/label",
    "image/object/class/text",
    "image/object/area",
    "image/object/is_crowd",
)
MASKS = object_masks.FEATURE

# Kinds of files that are passed over and counted, beside the objects that coco_json counts.
NOT_ANNOTATED = "not_in_annotations"
NO_OBJECTS = "without_objects"

_HEAD_BYTES = 512


class CocoSplit(NamedTuple):
    """A split: its annotation file and the folder of its images."""

    name: str
    annotations: str  # address
    folder: str  # path below the source's root; "" is the root


class _Folders:
    """Finds files in folders; lists each folder once, because 118,000 requests would take longer than one listing."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, storage.Entry]] = {}
        self._used: dict[str, set[str]] = {}

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

    def unused(self) -> Counter[str]:
        """Counts the files in these folders that nobody asked for, by kind."""
        passed_over: Counter[str] = Counter()
        for folder, entries in self._files.items():
            for entry in entries.values():
                if entry.name in self._used[folder] or entry.kind == storage.DIRECTORY:
                    continue
                passed_over[files.HIDDEN if entry.name.startswith(".") else NOT_ANNOTATED] += 1
        return passed_over


@dataclasses.dataclass(frozen=True)
class CocoSource:
    """Annotation files, and the folders of their images below `root`."""

    root: str
    splits: tuple[CocoSplit, ...]
    objects: coco_json.ObjectRule = coco_json.BOXES
    without_objects: bool = True
    fields: table_rows.RowFields = table_rows.NO_FIELDS

    def check(self) -> None:
        """Checks that the files and folders exist.

        Raises:
            ConfigError: if one is missing, or is clearly something else.
        """
        for split in self.splits:
            _check_annotations(split)
            folder = self._folder(split)
            try:
                kind = storage.storage_of(folder).stat(folder).kind
            except OSError as e:
                raise errors.ConfigError(
                    f"source.coco.images.{split.name}: {folder!r} cannot be read ({e.strerror or e}); it is the folder "
                    "of that split's images, below --input"
                ) from e
            if kind != storage.DIRECTORY:
                raise errors.ConfigError(f"source.coco.images.{split.name}: {folder!r} is not a folder")

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the images of each split in the order of its file."""
        found, folders = image_source.ListingBuilder(), _Folders()
        for split in self.splits:
            try:
                yield from self._list_part(split, folders, found)
            except table_rows.MissingValueError as e:
                found.problems.append(f"{split.annotations!r}: {e}")
            except coco_json.AnnotationFileError as e:
                found.problems.append(str(e))
            except OSError as e:
                found.problems.append(
                    f"the images or annotations of {split.name} cannot be read: {e}; they are "
                    f"{split.annotations!r} and {self._folder(split)!r}"
                )
        found.passed_over.update(folders.unused())
        yield found.take()

    def _folder(self, split: CocoSplit) -> str:
        return storage.join(self.root, split.folder) if split.folder else self.root

    def _list_part(
        self, split: CocoSplit, folders: _Folders, found: image_source.ListingBuilder
    ) -> Iterator[image_source.Listing]:
        with coco_json.open_file(split.annotations) as file:
            images = coco_json.read_images(file, self.fields.needed)
            objects = coco_json.read_objects(file, images, self.objects, found.passed_over)
        for number, name in enumerate(images.names):
            try:
                # Of an image with a fault, too: its file must not count as one that nobody asked for.
                entry = folders.find(*posixpath.split(self._locate(split, name)))
                if number in images.faults:
                    raise table_rows.BadRowError(*images.faults[number])
                ref = self._reference(split, number, images, entry)
                of_image = objects.of(number)
                if not of_image.labels and not self.without_objects:
                    found.passed_over[NO_OBJECTS] += 1
                    continue
                values = of_image if self.objects.masks else of_image[:-1]
                source_id = str(images.ids[number]).encode("utf-8", "surrogateescape")
                cells = dict(zip(self.fields.needed, images.cells[number]))
                found.refs.append(self.fields.fill(ref._replace(columns=(source_id, *values)), cells))
            except table_rows.BadRowError as e:
                found.rejects.append(self._reject(split, number, name, e))
            if found.is_full:
                yield found.take()

    def _reject(self, split: CocoSplit, number: int, name: str, error: table_rows.BadRowError) -> elements.Reject:
        key = posixpath.join(split.folder, name) if name else f"{split.name} image {number}"
        uri = storage.join(self._folder(split), name.lstrip("/")) if name else split.annotations
        return elements.Reject(key, uri, "list", error.reason, f"image {number} of {split.annotations}: {error.detail}")

    def _locate(self, split: CocoSplit, name: str) -> str:
        path = posixpath.normpath(name)
        if table_rows.is_absolute(name) or path.split("/")[0] == "..":
            raise table_rows.BadRowError(
                elements.Reason.OUTSIDE_ROOT, f"file_name {name!r} leaves the folder of images"
            )
        return storage.join(self._folder(split), path)

    def _reference(
        self, split: CocoSplit, number: int, images: coco_json.ImageTable, entry: storage.Entry | None
    ) -> elements.ImageRef:
        uri = self._locate(split, images.names[number])
        if entry is None or entry.kind == storage.BROKEN_LINK:
            raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no file {uri!r}")
        if entry.kind != storage.FILE:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({entry.kind})")
        return elements.ImageRef(
            posixpath.join(split.folder, posixpath.normpath(images.names[number])),
            uri,
            entry.size,
            entry.version,
            position=number,
            split=split.name,
            expected=(images.heights[number], images.widths[number]),
        )


def _check_annotations(split: CocoSplit) -> None:
    option, uri = f"source.coco.annotations.{split.name}", split.annotations
    try:
        head = storage.storage_of(uri).read(uri, 0, _HEAD_BYTES)
    except OSError as e:
        raise errors.ConfigError(
            f"{option}: {uri!r} cannot be read ({e.strerror or e}); give its path below --input"
        ) from e
    head = head.removeprefix(coco_json.BYTE_ORDER_MARK).lstrip()
    if not head.startswith(b"{"):
        raise errors.ConfigError(f"{option}: {uri!r} begins with {head[:8]!r}; a JSON object begins with {{")
