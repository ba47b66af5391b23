"""Databases of pets for the class of examples/pets.py, and small modules with sources of a user."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import sqlite3
from typing import Any

from tests import command_line, image_sets

EXAMPLES = command_line.ROOT / "examples"
NUM_PETS = 20
CONFIG: dict[str, Any] = {
    "source": {"by": "pets:Pets", "options": {"min_width": 2}},
    "label": {"by": "column", "column": "species"},
    "split": {"by": "column", "column": "split"},
    "columns": {"name": {}},
    "output": {"num_shards": 2},
}
MINIMAL = """
import dataclasses
from imagebeam.sources import ImageRef, Source

@dataclasses.dataclass(frozen=True)
class Photos(Source):
    def images(self, request):
        for name in ("cat/0.jpg", "dog/1.jpg"):
            yield ImageRef(name, f"{request.uri}/{name}")
"""
_numbers = itertools.count()


def write_pets(folder: pathlib.Path) -> pathlib.Path:
    """Writes a database of NUM_PETS pets. The photos of every second one are files, the others are in the table."""
    folder.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(folder / "pets.db")) as database:
        database.execute(
            "CREATE TABLE pets (id INTEGER PRIMARY KEY, path, photo BLOB, width, changed, name, species, split)"
        )
        for number in range(NUM_PETS):
            photo, path = image_sets.make_image(number), None
            if number % 2:
                path = f"{number}.jpg"
                (folder / path).write_bytes(photo)
            species, split = ("cat", "dog")[number % 3 == 0], ("train", "test")[number % 5 == 0]
            row = (number, path, None if path else photo, number, 1, f"pet {number}", species, split)
            database.execute("INSERT INTO pets VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.commit()
    return folder / "pets.db"


def config_of(database: pathlib.Path, **more: Any) -> dict[str, Any]:
    """Returns a config that reads a database; `more` replaces its sections."""
    return {**CONFIG, "source": {**CONFIG["source"], "uri": str(database)}, **more}


def change(database: pathlib.Path, statement: str, *values: Any) -> None:
    """Changes rows of a database."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(statement, values)
        connection.commit()


def write_module(folder: pathlib.Path, text: str) -> str:
    """Writes a module with a name that no other has; returns the name."""
    name = f"own_module_{next(_numbers)}"
    (folder / f"{name}.py").write_text(text)
    return name
