"""Images for runs on other storages, some of them with odd names, and the comparison of two datasets."""

from __future__ import annotations

import pathlib

from tests import datasets, image_sets

ODD_NAMES = ("a b.jpg", "ü.jpg", "#1.jpg", "50%.jpg", "a%20b.jpg", "what?.jpg", "x*y.jpg", "[z].jpg")
NUM_IMAGES = 50


def write_images(folder: pathlib.Path) -> None:
    """Writes NUM_IMAGES images of two classes, some of them with odd names."""
    image_sets.write_folder(folder, per_label=NUM_IMAGES // 2)
    for index, name in enumerate(ODD_NAMES):
        (folder / "cat" / f"{5 * index // 2}.jpg").rename(folder / "cat" / name)


def assert_same(found: pathlib.Path, expected: pathlib.Path) -> None:
    """Checks that two datasets hold the same, and that nothing was left behind in either."""
    assert datasets.shard_digests(found) == datasets.shard_digests(expected)
    assert datasets.rejects(found) == datasets.rejects(expected)
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}
