"""Images whose pixels are in CSV files, a row for each image: FER2013, MNIST in CSV."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source, table_rows

if TYPE_CHECKING:
    from imagebeam.transforms.arrays import pixel_rows


class PixelFile(NamedTuple):
    """One CSV file."""

    split: str  # "" if its name says none
    uri: str
    version: int
    table: pixel_rows.PixelTable
    address: str  # of the part of the file that is its images


@dataclasses.dataclass(frozen=True)
class PixelCsvSource(image_source.ImageSource):
    """Files whose images all have one shape."""

    files: tuple[PixelFile, ...]
    image_shape: tuple[int, int, int]  # height and width in pixels, and channels
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    names: tuple[tuple[str, str], ...] = ()  # class of each label, both as texts; () takes the labels themselves

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their ids, as the config states them; () if it does not."""
        return tuple(dict.fromkeys(name for _, name in self.names))

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(shape=self.image_shape, class_names=self.class_names or None)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields a reference for each row, in the order of the files."""
        yield from image_source.list_parts((self._list_file(file), repr(file.uri)) for file in self.files)

    def _list_file(self, file: PixelFile) -> Iterator[elements.ImageRef | elements.Reject]:
        from imagebeam.transforms.arrays import pixel_rows  # late: NumPy

        size, classes = math.prod(self.image_shape), dict(self.names)
        for position, row in enumerate(pixel_rows.read_rows(file.uri, file.version, file.table)):
            key = f"{file.split or 'images'}/{position:05d}"
            try:
                if row.problem:
                    raise table_rows.BadRowError(elements.Reason.BAD_ROW, row.problem)
                cells = dict(zip(file.table.names, row.cells))
                if classes and self.fields.label is not None and (label := cells[self.fields.label]):
                    if label not in classes:
                        raise table_rows.BadRowError(
                            elements.Reason.UNKNOWN_LABEL,
                            f"column {self.fields.label!r} is {label!r}, and the classes are "
                            f"{', '.join(map(': '.join, self.names[:20]))}",
                        )
                    cells[self.fields.label] = classes[label]
                ref = elements.ImageRef(
                    key, file.address, size, file.version, position * size, size, position, split=file.split
                )
                yield self.fields.fill(ref, cells)
            except table_rows.BadRowError as e:
                yield elements.Reject(key, file.uri, "list", e.reason, f"line {row.line} of {file.uri}: {e.detail}")
