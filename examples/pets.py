"""A source of your own: photos of pets in an SQLite table, as paths of files or as bytes.

    imagebeam convert --config pets.yaml --input pets.db --output records

with the file `pets.yaml`:

    source: {by: "pets:Pets", options: {min_width: 200}}
    label: {by: column, column: species}
    split: {by: column, column: split}
    columns: {name: {}}
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from typing import ClassVar

from imagebeam.sources import ImageRef, Reject, Request, Source


@dataclasses.dataclass(frozen=True)
class Pets(Source):
    """The rows of the table `pets`."""

    SCHEME: ClassVar[str] = "pets"  # pets://17: the bytes in the column `photo` of row 17

    min_width: int = 0
    """Photos that are narrower are left out."""

    def images(self, request: Request) -> Iterator[ImageRef | Reject]:
        """Yields the photos: a row has a path below the folder of the database, or the bytes."""
        query = """
            SELECT id, path, length(photo) AS size, changed, name, species, split
            FROM pets WHERE width >= ? ORDER BY id
        """
        with contextlib.closing(sqlite3.connect(request.uri)) as database:
            database.row_factory = sqlite3.Row
            for row in map(dict, database.execute(query, [self.min_width])):
                if row["path"] is not None:
                    yield request.reference(row["path"], row)
                else:
                    yield request.reference(f"pets://{row['id']}", row, size=row["size"], version=row["changed"])

    def read_image(self, request: Request, uri: str) -> bytes:
        """Returns the bytes of a photo in the table. A connection belongs to one thread, so each call opens one."""
        with contextlib.closing(sqlite3.connect(request.uri)) as database:
            found = database.execute("SELECT photo FROM pets WHERE id = ?", [uri.removeprefix("pets://")]).fetchone()
        if found is None:
            raise FileNotFoundError("the row was deleted")
        photo: bytes = found[0]
        return photo
