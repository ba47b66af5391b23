"""Looks up the label of each image in a table, by a part of its file name."""

from __future__ import annotations

import csv

import imagebeam


class Species:
    """The species of each animal, from a table with the columns `animal` and `species`."""

    def __init__(self, table: str) -> None:
        with open(table, encoding="utf-8", newline="") as file:
            self.by_animal = {row["animal"]: row["species"] for row in csv.DictReader(file)}

    def __call__(self, reference: imagebeam.Reference) -> str | None:
        """Returns the species of the animal in `<animal>_<number>.jpg`; None if the table lacks it."""
        animal = reference.key.rpartition("/")[2].partition("_")[0]
        return self.by_animal.get(animal)
