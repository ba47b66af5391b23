"""Images with objects, as files of annotations in COCO's JSON format name them."""

from __future__ import annotations

import dataclasses
import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import coco_json, files, protocol, table_rows

# Sources of the values in ImageRef.columns, in their order; of MASKS only where masks are stored.
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
MASKS = "image/object/mask"

# What is passed over, beside the objects that coco_json counts.
NOT_ANNOTATED = "not_in_annotations"
NO_OBJECTS = "without_objects"

_HEAD_BYTES = 512


class Part(NamedTuple):
    """A split: its file of annotations and the folder of its images."""

    split: str
    annotations: str  # address
    folder: str  # below the source's root


class _Folders:
    """The files in the folders that are asked for, each listed once: 118,000 requests would take longer than one."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, storage.Entry]] = {}
        self._used: dict[str, set[str]] = {}

    def find(self, folder: str, name: str) -> storage.Entry | None:
        """The entry of a file.

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
        """What lies in these folders and was not asked for, by kind."""
        passed_over: Counter[str] = Counter()
        for folder, entries in self._files.items():
            for entry in entries.values():
                if entry.name in self._used[folder] or entry.kind == storage.DIRECTORY:
                    continue
                passed_over[files.HIDDEN if entry.name.startswith(".") else NOT_ANNOTATED] += 1
        return passed_over


@dataclasses.dataclass(frozen=True)
class CocoSource:
    """Files of annotations, and the folders with their images below `root`."""

    root: str
    parts: tuple[Part, ...]
    objects: coco_json.ObjectRule = coco_json.BOXES
    without_objects: bool = True
    fields: table_rows.RowFields = table_rows.NO_FIELDS

    def check(self) -> None:
        """Looks for the files and folders.

        Raises:
            ConfigError: if one is not there, or is plainly something else.
        """
        for part in self.parts:
            _check_annotations(part)
            folder = self._folder(part)
            try:
                kind = storage.storage_of(folder).stat(folder).kind
            except OSError as e:
                raise errors.ConfigError(
                    f"source.coco.images.{part.split}: {folder!r} cannot be read ({e.strerror or e}); it is the folder "
                    "of that split's images, below --input"
                ) from e
            if kind != storage.DIRECTORY:
                raise errors.ConfigError(f"source.coco.images.{part.split}: {folder!r} is no folder")

    def list_all(self) -> Iterator[protocol.Listing]:
        """Yields the images of each split in the order of its file."""
        found, folders = protocol.ListingBuilder(), _Folders()
        for part in self.parts:
            try:
                yield from self._list_part(part, folders, found)
            except table_rows.MissingValueError as e:
                found.problems.append(f"{part.annotations!r}: {e}")
            except coco_json.AnnotationFileError as e:
                found.problems.append(str(e))
            except OSError as e:
                found.problems.append(
                    f"the images or annotations of {part.split} cannot be read: {e}; they are {part.annotations!r} and "
                    f"{self._folder(part)!r}"
                )
        found.passed_over.update(folders.unused())
        yield found.take()

    def _folder(self, part: Part) -> str:
        return storage.join(self.root, part.folder) if part.folder else self.root

    def _list_part(self, part: Part, folders: _Folders, found: protocol.ListingBuilder) -> Iterator[protocol.Listing]:
        with coco_json.open_file(part.annotations) as file:
            images = coco_json.read_images(file, self.fields.needed)
            objects = coco_json.read_objects(file, images, self.objects, found.passed_over)
        for number, name in enumerate(images.names):
            try:
                entry = folders.find(
                    *posixpath.split(self._locate(part, name))
                )  # of one with a fault, too: it is named
                if number in images.faults:
                    raise table_rows.BadRowError(*images.faults[number])
                ref = self._reference(part, number, images, entry)
                of_image = objects.of(number)
                if not of_image.labels and not self.without_objects:
                    found.passed_over[NO_OBJECTS] += 1
                    continue
                values = of_image if self.objects.masks else of_image[:-1]
                source_id = str(images.ids[number]).encode("utf-8", "surrogateescape")
                cells = dict(zip(self.fields.needed, images.cells[number]))
                found.refs.append(self.fields.fill(ref._replace(columns=(source_id, *values)), cells))
            except table_rows.BadRowError as e:
                found.rejects.append(self._reject(part, number, name, e))
            if found.is_full:
                yield found.take()

    def _reject(self, part: Part, number: int, name: str, error: table_rows.BadRowError) -> elements.Reject:
        key = posixpath.join(part.folder, name) if name else f"{part.split} image {number}"
        uri = storage.join(self._folder(part), name.lstrip("/")) if name else part.annotations
        return elements.Reject(key, uri, "list", error.reason, f"image {number} of {part.annotations}: {error.detail}")

    def _locate(self, part: Part, name: str) -> str:
        path = posixpath.normpath(name)
        if path.startswith("/") or path.split("/")[0] == ".." or storage.scheme_of(name) != "file":
            raise table_rows.BadRowError(
                elements.Reason.OUTSIDE_ROOT, f"file_name {name!r} leaves the folder of images"
            )
        return storage.join(self._folder(part), path)

    def _reference(
        self, part: Part, number: int, images: coco_json.ImageTable, entry: storage.Entry | None
    ) -> elements.ImageRef:
        uri = self._locate(part, images.names[number])
        if entry is None or entry.kind == storage.BROKEN_LINK:
            raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no file {uri!r}")
        if entry.kind != storage.FILE:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({entry.kind})")
        return elements.ImageRef(
            posixpath.join(part.folder, posixpath.normpath(images.names[number])),
            uri,
            entry.size,
            entry.version,
            position=number,
            split=part.split,
            expected=(images.heights[number], images.widths[number]),
        )


def _check_annotations(part: Part) -> None:
    option, uri = f"source.coco.annotations.{part.split}", part.annotations
    try:
        head = storage.storage_of(uri).read(uri, 0, _HEAD_BYTES)
    except OSError as e:
        raise errors.ConfigError(f"{option}: {uri!r} cannot be read ({e.strerror or e}); it lies below --input") from e
    head = head.removeprefix(coco_json.BYTE_ORDER_MARK).lstrip()
    if not head.startswith(b"{"):
        raise errors.ConfigError(f"{option}: {uri!r} begins with {head[:8]!r}; a JSON object begins with {{")
