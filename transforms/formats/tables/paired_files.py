"""Lists the files that the rows of a table go with, in the order of their paths."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from imagebeam import plural, storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import manifest, table_formats
from imagebeam.transforms.sources import files, image_source, table_rows

_File: TypeAlias = "elements.ImageRef | elements.Reject"
_NUMBER = re.compile(r"(\d+)")


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a key for sorting by which numbers in texts count by their values."""
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(_NUMBER.split(text))]


@dataclasses.dataclass(frozen=True)
class PairedFilesSource(image_source.ImageSource):
    """A table whose row n belongs to file n, in the order of their paths.

    A file or row that cannot be used keeps its number, so later ones do not move up.
    """

    table: manifest.ManifestSource
    files: files.FilesSource
    order: Literal["text", "natural"] | None = None  # None if both must be the same

    def facts(self) -> image_source.SourceFacts:
        return self.table.facts()

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the images in the order of the rows; different numbers of rows and files are a problem."""
        found = image_source.ListingBuilder()
        images = self._list_files(found)
        num_rows = 0
        try:
            for place, row in self.table.read_rows():
                num_rows += 1
                if place.position < len(images):
                    self._pair(images[place.position], place, row, found)
                if found.is_full:
                    yield found.take()
            if num_rows != len(images):
                found.problems.append(self._explain(num_rows, [image.uri for image in images]))
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.table.uri!r} cannot be read to its end: {e}")
        yield found.take()

    def column_names(self) -> list[str]:
        """Returns the names of the table's columns."""
        return self.table.column_names()

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Describes the places of rows like `ManifestSource.describe_rows`."""
        return self.table.describe_rows(positions)

    def _list_files(self, found: image_source.ListingBuilder) -> list[_File]:
        images: list[_File] = []
        for part in self.files.list_all():
            images += elements.unpack_refs(part.packed_refs)
            images += part.rejects
            found.skipped.update(part.skipped)
            found.problems += part.problems
        as_text = sorted(images, key=lambda image: image.uri)
        if self.order == "text":
            return as_text
        natural = sorted(as_text, key=lambda image: _natural(image.uri))
        differing = (n for n, (one, other) in enumerate(zip(as_text, natural)) if one is not other)
        if self.order is None and (row := next(differing, None)) is not None:
            found.problems.append(
                f"row {row + 1} of {self.table.uri!r} would belong to {as_text[row].uri!r} in the order of text, "
                f"and to {natural[row].uri!r} in that of numbers: set source.manifest.order to text or natural"
            )
        return natural

    def _pair(self, image: _File, place: table_formats.RowPlace, row: Any, found: image_source.ListingBuilder) -> None:
        key = image.uri.removeprefix(storage.join(self.table.root, ""))
        where = f"{place} of {self.table.uri}"
        if isinstance(image, elements.Reject):
            found.rejects.append(image._replace(key=key))
            return
        try:
            if not isinstance(row, Mapping):
                raise table_rows.BadRowError(elements.Reason.BAD_ROW, str(row))
            column = self.table.fields.key
            named = table_rows.text_in(row, column) if column else key
            if not named:
                raise table_rows.BadRowError(elements.Reason.BAD_ROW, f"column {column!r} is empty")
            found.refs.append(self.table.fields.fill(image._replace(key=named, position=place.position), row))
        except table_rows.BadRowError as e:
            found.rejects.append(elements.Reject(key, image.uri, "list", e.reason, f"{where}: {e.detail}"))
        except table_rows.MissingValueError as e:
            raise table_rows.MissingValueError(f"{where}: {e}") from e

    def _explain(self, num_rows: int, uris: list[str]) -> str:
        ends = f" (the first {uris[0]!r}, the last {uris[-1]!r})" if uris else ""
        glob = storage.join(self.files.root, ", ".join(self.files.include))
        return (
            f"manifest {self.table.uri!r} has {plural.count(num_rows, 'row')}, and source.manifest.files {glob!r} "
            f"matches {plural.count(len(uris), 'file')}{ends}: there must be one row for each file, in the "
            "order of the files' paths"
        )
