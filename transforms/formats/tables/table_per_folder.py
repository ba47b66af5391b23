"""Lists the images of several tables below one folder, each beside its images, like Hugging Face's `metadata.csv`."""

from __future__ import annotations

import array
import dataclasses
import posixpath
import re
from collections.abc import Iterator, Sequence

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import manifest, row_steps, table_formats
from imagebeam.transforms.sources import files, find_files, image_source

UNNAMED = "not_in_table"  # kind of images beside the tables that no row names


def is_glob(path: str) -> bool:
    """Returns whether `path` contains wildcards and so may match several tables."""
    return re.search(r"[*?\[]", path) is not None


@dataclasses.dataclass(frozen=True)
class TablePerFolderSource(image_source.RowSource):
    """Several tables in a row: positions continue from one to the next, and keys are relative to one folder."""

    tables: tuple[manifest.ManifestSource, ...]
    folder: str | None = None  # folder in which images that no row names are counted
    exclude: str = ""  # address in it that is not searched: the output folder

    def facts(self) -> image_source.SourceFacts:
        return self.tables[0].facts()

    def column_names(self) -> list[str]:
        """Returns the names of the columns of the first table.

        Raises:
            ConfigError: if it cannot be read.
        """
        return self.tables[0].column_names()

    def check_columns(self) -> None:
        """Checks the columns of every table.

        Raises:
            ConfigError: if a table cannot be read, or lacks a column.
        """
        for table in self.tables:
            table.check_columns()

    def list_rows(self) -> Iterator[image_source.RowBatch | image_source.Listing]:
        """Yields the rows of all tables in their order."""
        num_rows = 0
        named = array.array("Q")
        problems = False
        listed: row_steps.Listed = {}
        for index, table in enumerate(self.tables):
            first_position = num_rows
            for found in table.list_rows(listed):
                if isinstance(found, image_source.RowBatch):
                    last, _ = found.rows[-1]
                    num_rows = max(num_rows + len(found.rows), first_position + last.position + 1)
                    if self._counts_unnamed:
                        named.extend(map(_hash, table.addresses(found.rows)))
                    yield dataclasses.replace(found, table=index, first_position=first_position)
                else:
                    problems = problems or bool(found.problems)
                    yield found
        yield from self._rest(num_rows, named, problems)

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        """Returns the images of the rows of one table."""
        table = dataclasses.replace(self.tables[batch.table], first_position=batch.first_position)
        return table.look_up(batch)

    def hint(self, reason: elements.Reason) -> str:
        """Returns what to do if every image is rejected for this reason, as seen from the first table."""
        return self.tables[0].hint(reason)

    @property
    def _counts_unnamed(self) -> bool:
        return self.folder is not None and not any(table.trust for table in self.tables)

    def _rest(self, num_rows: int, named: array.array[int], problems: bool) -> Iterator[image_source.Listing]:
        """Yields what belongs to no row: the images that no row names, and the problem that there is no row."""
        rest = image_source.ListingBuilder()
        if not num_rows and not problems:
            places = ", ".join(table.uri for table in self.tables[:3]) + (", ..." if len(self.tables) > 3 else "")
            rest.problems.append(f"no manifest has a row, so there are no images: {places}; fill them")
        elif (
            self._counts_unnamed
            and self.folder is not None
            and (unnamed := _count_unnamed(self.folder, self.exclude, named))
        ):
            rest.skipped[UNNAMED] += unnamed
        if rest.problems or rest.skipped:
            yield rest.take()

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Describes the places of the rows with these positions for a user.

        Raises:
            OSError: if a table cannot be read.
            ValueError: if a table is broken, or rows were merged.
        """
        if len(self.tables) > 1 and any(table.merge_rows for table in self.tables):
            raise ValueError("where the rows of several tables are merged, positions are not those of rows")
        described: dict[int, str] = {}
        first_position = 0
        for table in self.tables:
            num_rows = sum(1 for _ in table.read_rows())
            here = [position for position in positions if 0 <= position - first_position < num_rows]
            moved = dataclasses.replace(table, first_position=first_position)
            described |= dict(zip(here, moved.describe_rows(here))) if here else {}
            first_position += num_rows
        return [described[position] for position in positions]


def _hash(uri: str) -> int:
    return elements.hash64(uri, 0, b"imagebeam.named")


def _count_unnamed(folder: str, exclude: str, named: array.array[int]) -> int:
    """Counts the files below `folder` with the extension of an image whose hash is not in `named`."""
    import numpy as np

    known = np.sort(np.frombuffer(named, np.uint64))
    found = array.array("Q")
    try:
        for uri in find_files.find_files(folder, find_files.EVERYTHING, exclude):
            if posixpath.splitext(uri)[1].lower().lstrip(".") in files.IMAGE_EXTENSIONS:
                found.append(_hash(uri))
    except OSError:  # only a count is lost, so the run goes on
        return 0
    hashes = np.frombuffer(found, np.uint64)
    return int(np.count_nonzero(~np.isin(hashes, known)))


def find_tables(root: str, glob: str, exclude: str = "", format: str | None = None) -> list[str]:
    """Returns the sorted addresses of the tables below `root` that `glob` matches.

    Args:
        root: a folder.
        glob: relative to `root`; `*` and `?` match inside one name, `**` matches any number of folders. Hidden files
            and folders match nothing.
        exclude: address that is not searched: the output folder.
        format: of the tables; without it, files whose extension names no format are skipped.

    Raises:
        ConfigError: if no table matches, or a folder cannot be listed.
    """
    parts = tuple(glob.split("/"))
    problem = f"the tables {glob!r} below {root!r} cannot be looked for"
    with errors.explained("folder-unreadable", problem, "; check --input"):
        found = list(find_files.find_files(root, parts, exclude))
    known = {name for name in table_formats.FORMATS if name != ".json" or glob.endswith(".json")}  # often no table
    tables = [uri for uri in found if format or posixpath.splitext(uri)[1].lower() in known]
    if not tables:
        others = f"; {found[0]!r} is none of {', '.join(table_formats.FORMATS)}" if found else ""
        raise errors.ConfigError(
            "table-no-match",
            f"no table matches {glob!r} below {root!r}{others}; check --input and source.manifest.path, or set "
            "source.by: files for a folder of images without a table",
        )
    return sorted(tables)
