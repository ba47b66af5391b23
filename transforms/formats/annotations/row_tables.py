"""Lists the images that annotation files of many images name, each with the rows of its objects."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats.annotations import syntax as syntax_lib
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotation_tables, folder_probe, image_source, input_places, table_rows

_DOCUMENT = "annotations"  # name of the column with the rows of an image, which no feature has
_BUFFER_BYTES = 1 << 20
_MAX_MIB = 64


@dataclasses.dataclass(frozen=True)
class RowTablesSource(annotation_tables.AnnotationTableSource):
    """Annotation files of one syntax, and the folders of their images below `root`."""

    reader: syntax_lib.RowReader | None = None  # parses the rows of an image in the workers that write it
    image_name: str = "{name}"  # path of an image in its folder, by the name in the file
    keeps_unnamed: bool = False  # whether images that no file names are stored without objects
    splits_by_subset: bool = False  # whether an image is in the split that its subset means, if the file says one
    texts: tuple[tuple[str, str], ...] = ()  # names of classes by the codes that stand for them in the files

    OPTION: ClassVar[str] = "source.annotations"
    KEY: ClassVar[str] = "files"
    ON_REPEATED_KEY: ClassVar[str] = (
        "two files name it, or one in two ways: name one of the files in source.annotations.files, and the folder of "
        "its images in source.annotations.images"
    )

    @property
    def columns(self) -> tuple[str, ...]:
        assert self.reader is not None
        return (*self.reader.columns, _DOCUMENT)

    def facts(self) -> image_source.SourceFacts:
        return super().facts()._replace(annotations=self.reader)

    def with_classes(self, given: str | Sequence[str] | None, base: int) -> RowTablesSource:
        """Returns the source with the classes that are given, or else those that its files name, sorted.

        Args:
            given: names of the classes, or the file that has them.
            base: id of the first class.

        Raises:
            ConfigError: if a file cannot be read, or no file has an object.
        """
        assert self.reader is not None
        if given is not None:
            names = input_places.read_classes(self.root, given, f"{self.OPTION}.classes")
        else:
            try:
                rows = itertools.chain.from_iterable(map(self._rows, self.splits))
                names = tuple(sorted(syntax_lib.classes_in(rows)))
            except (annotation_tables.AnnotationFileError, OSError) as e:
                raise errors.ConfigError("annotations-other-syntax", f"source.annotations.files: {e}") from e
        if not names:
            raise errors.ConfigError(
                "annotations-no-object",
                f"no object is in {', '.join(repr(each.annotations) for each in self.splits)}: check "
                "source.annotations.files, or list the classes in source.annotations.classes",
            )
        reader = dataclasses.replace(self.reader, classes=image_objects.ClassNames(names, None, base))
        return dataclasses.replace(self, reader=reader)

    def check_head(self, split: annotation_tables.AnnotatedSplit, head: bytes) -> None:
        pass  # the whole file is read for its classes

    def read(
        self, split: annotation_tables.AnnotatedSplit, found: image_source.ListingBuilder
    ) -> tuple[annotation_tables.ImageTable, annotation_tables.ObjectTable]:
        images = annotation_tables.ImageTable(is_sized=False)
        file = posixpath.basename(split.annotations).encode("utf-8", "surrogateescape") + b"\n"
        opened: dict[str, str] = {}  # where the entry of an image begins
        assert self.reader is not None
        for row in self._rows(split):
            if self.reader.syntax.ENTRIES and row.image and row.name is None:
                if row.image in opened:
                    raise annotation_tables.AnnotationFileError(
                        f"{split.annotations!r} has two entries of the image {row.image!r}, {opened[row.image]} and "
                        f"{row.where}, which may be of two images: give each image a name of its own, or remove one"
                    )
                opened[row.image] = row.where
            number = images.numbers.get(row.image) if row.image else None
            if number is None:
                number = len(images.names)
                images.add({"file_name": row.image, "id": row.image or row.where, "subset": row.subset}, ("subset",))
                if not row.image:
                    images.faults[number] = Reason.BAD_ROW, f"{row.where} names no image"
            if row.name is not None:
                images.documents.setdefault(number, bytearray(file)).extend(syntax_lib.pack_row(row))
        if not images.names:
            raise annotation_tables.AnnotationFileError(f"{split.annotations!r} names no image; fill it")
        return images, annotation_tables.ObjectTable(len(images.names), {})

    def values_of(
        self, images: annotation_tables.ImageTable, number: int, objects: annotation_tables.Objects
    ) -> tuple[Any, ...]:
        return (bytes(images.documents.get(number, b"")),)

    def _reference(
        self,
        split: annotation_tables.AnnotatedSplit,
        number: int,
        images: annotation_tables.ImageTable,
        entry: storage.Entry | None,
    ) -> elements.ImageRef:
        ref = super()._reference(split, number, images, entry)
        meant = folder_probe.split_meant(images.cells[number][0]) if self.splits_by_subset else None
        return ref if meant is None else ref._replace(split=meant)

    def find_name(self, split: annotation_tables.AnnotatedSplit, name: str, folders: annotation_tables.Folders) -> str:
        """Returns the path of the image that a file names perhaps without its extension, or without zeros before it."""
        name = self.image_name.replace("{name}", name)
        above, base = posixpath.split(self._locate(split, name))
        if folders.find(above, base) is not None or posixpath.splitext(base)[1].lower() in input_places.IMAGE_SUFFIXES:
            return name
        named = folders.named(above, base)
        if len(named) > 1:
            raise table_rows.BadRowError(Reason.BAD_ROW, f"{name!r} may be {' or '.join(named)}: add the extension")
        return posixpath.join(posixpath.dirname(name), named[0]) if named else name

    def unnamed(
        self, split: annotation_tables.AnnotatedSplit, folders: annotation_tables.Folders
    ) -> Iterator[elements.ImageRef]:
        """Yields the images in the folder of a split that its file does not name, if they are kept."""
        for entry in folders.unused_images(self._folder(split)) if self.keeps_unnamed else ():
            key, uri = posixpath.join(split.folder, entry.name), storage.join(self._folder(split), entry.name)
            yield elements.ImageRef(key, uri, entry.size, entry.version, split=split.name, columns=(b"",))

    def _rows(self, split: annotation_tables.AnnotatedSplit) -> Iterator[syntax_lib.Row]:
        """Yields the rows of a file.

        Raises:
            AnnotationFileError: if it is of another syntax.
            OSError: if it cannot be read.
        """
        assert self.reader is not None
        syntax, texts = self.reader.syntax, dict(self.texts) or self._codes_beside(split)
        raw: Any = storage.storage_of(split.annotations).open_read(split.annotations)
        with io.BufferedReader(raw, _BUFFER_BYTES) as file:
            try:
                for row in syntax.rows(file):
                    yield row._replace(name=texts.get(row.name, row.name)) if row.name and texts else row
            except ValueError as e:
                raise annotation_tables.AnnotationFileError(
                    f"{split.annotations!r} is no file of {syntax.TITLE}: {e}; correct it, or choose another "
                    "source.annotations.syntax"
                ) from e

    def _codes_beside(self, split: annotation_tables.AnnotatedSplit) -> Mapping[str, str]:
        assert self.reader is not None
        syntax = self.reader.syntax
        uri = storage.join(posixpath.dirname(split.annotations), syntax.CODES_FILE)
        if not syntax.CODES_FILE or input_places.kind_of(uri) != storage.FILE:
            return syntax.CODES
        return syntax_lib.codes_of(input_places.read_classes(self.root, uri, f"{self.OPTION}.classes"))


def read_texts(root: str, path: str) -> Mapping[str, str]:
    """Returns the names of classes by their codes: a code and a name on each line of a CSV file.

    Raises:
        ConfigError: if the file cannot be read, or a line has other cells.
    """
    uri = input_places.resolve(path, root)
    where = f"source.annotations.class_names: {uri!r}"
    text = input_places.read_text(uri, _MAX_MIB, where, "give a file below --input", "no list of classes")
    rows = [cells for cells in csv.reader(io.StringIO(text, newline="")) if cells]
    if wrong := next((cells for cells in rows if len(cells) != 2 or not cells[1].strip()), None):
        raise errors.ConfigError(
            "annotations-bad-class-name", f"{where} has the line {','.join(wrong)[:80]!r}, expected a code and a name"
        )
    return {code.strip(): name.strip() for code, name in rows}
