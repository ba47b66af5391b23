"""Lists the images in annotation files that hold the objects of many images each: COCO's JSON, CSV."""

from __future__ import annotations

import dataclasses
import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import files, image_source, input_places, object_tables, table_rows

# Kinds of files that are skipped and counted, beside the objects that become none.
NOT_ANNOTATED = "not_in_annotations"
NO_OBJECTS = "without_objects"

_HEAD_BYTES = 512


class AnnotatedSplit(NamedTuple):
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
        skipped: Counter[str] = Counter()
        for folder, entries in self._files.items():
            for entry in entries.values():
                if entry.name in self._used[folder] or entry.kind == storage.DIRECTORY:
                    continue
                skipped[files.HIDDEN if entry.name.startswith(".") else NOT_ANNOTATED] += 1
        return skipped


def _mask_at(uri: str, folders: _Folders) -> elements.Mask:
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
    ON_REPEATED_KEY: ClassVar[str]  # see SourceFacts

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that `values_of` returns."""
        raise NotImplementedError

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(
            columns=self.columns, notes=input_places.notes_on_unread(self.unread), on_repeated_key=self.ON_REPEATED_KEY
        )

    def read(
        self, split: AnnotatedSplit, found: image_source.ListingBuilder
    ) -> tuple[object_tables.ImageTable, object_tables.ObjectTable]:
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

    def values_of(
        self, images: object_tables.ImageTable, number: int, objects: object_tables.Objects
    ) -> tuple[Any, ...]:
        """Returns the values of the columns that the source gives for an image."""
        raise NotImplementedError

    def mask_of(self, split: AnnotatedSplit, images: object_tables.ImageTable, number: int) -> str | None:
        """Returns the address of the mask of an image; None if the source has no masks."""
        return None

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

    def _check_annotations(self, split: AnnotatedSplit, key: str = "annotations") -> None:
        uri = split.annotations
        try:
            head = storage.storage_of(uri).read(uri, 0, _HEAD_BYTES)
        except OSError as e:
            raise errors.ConfigError(
                "annotations-unreadable",
                f"{self.OPTION}.{key}.{split.name}: {uri!r} cannot be read ({e.strerror or e}); give its path "
                "below --input",
            ) from e
        self.check_head(split, head)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the images of each split in the order of its file."""
        found, folders = image_source.ListingBuilder(), _Folders()
        for split in self.splits:
            try:
                yield from self._list_part(split, folders, found)
            except table_rows.MissingValueError as e:
                found.problems.append(f"{split.annotations!r}: {e}")
            except object_tables.AnnotationFileError as e:
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
        self, split: AnnotatedSplit, folders: _Folders, found: image_source.ListingBuilder
    ) -> Iterator[image_source.Listing]:
        images, objects = self.read(split, found)
        for number, name in enumerate(images.names):
            try:
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
        self, split: AnnotatedSplit, number: int, images: object_tables.ImageTable, entry: storage.Entry | None
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
            expected=(images.heights[number], images.widths[number]),
        )
