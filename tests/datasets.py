"""Makes datasets in this process, reads them back and compares them."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import example, records
from imagebeam.pipelines import convert, verify_dataset
from tests import image_sets

Example = dict[str, Any]
ODD_NAMES = ("a b.jpg", "ü.jpg", "#1.jpg", "50%.jpg", "a%20b.jpg", "what?.jpg", "x*y.jpg", "[z].jpg")
NUM_IMAGES = 50


def make(
    images: pathlib.Path, output: pathlib.Path, /, overwrite: bool = False, **sections: Any
) -> convert.ConvertResult:
    """Converts `images` with a config of `sections`, and checks what is true of every dataset."""
    sections = {**sections, "source": {"uri": str(images), **sections.get("source", {})}}
    sections["output"] = {"uri": str(output), **sections.get("output", {})}
    result = convert.convert(sections, workers=1, overwrite=overwrite)
    counts = result.catalog.counts
    assert counts.listed == counts.written + sum(counts.rejected.values())
    assert counts.written == sum(split.num_examples for split in result.catalog.splits.values())
    assert verify_dataset.verify(str(output), decode=True).problems == ()
    assert not (output / ".imagebeam").exists()
    named = {shard.name for split in result.catalog.splits.values() for shard in split.shards}
    assert set(shard_digests(output)) == named
    return result


def read_lists(output: pathlib.Path, split: str = "train") -> list[Example]:
    """Reads the examples of a split in the order of its shards, each feature as a list."""
    catalog = catalog_lib.load_catalog(str(output))
    examples = []
    for shard in catalog.splits[split].shards:
        with open(output / shard.name, "rb") as file:
            found = records.read_records(file, catalog.compression)
            examples += [dict(example.parse_example(record.data)) for record in found]
    return examples


def read(output: pathlib.Path, split: str = "train") -> list[Example]:
    """Reads the examples of a split in the order of its shards, each feature as its only value."""
    found = read_lists(output, split)
    assert all(len(value) == 1 for values in found for value in values.values())
    return [{key: value[0] for key, value in values.items()} for values in found]


def keys(output: pathlib.Path, split: str = "train") -> list[str]:
    """Returns the keys of a split's examples in their order."""
    return [each["image/key"].decode() for each in read(output, split)]


def rejects(output: pathlib.Path) -> dict[str, str]:
    """Returns key and reason of every dead letter."""
    lines = (output / "rejects.jsonl").read_text().splitlines()
    return {line["key"]: line["reason"] for line in map(json.loads, lines)}


def shard_sizes(output: pathlib.Path, split: str = "train") -> list[int]:
    """Returns the number of records in each shard of a split."""
    return [shard.records for shard in catalog_lib.load_catalog(str(output)).splits[split].shards]


def shard_digests(output: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 of every shard by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(output.glob("*-of-*"))}


def write_images(folder: pathlib.Path) -> None:
    """Writes NUM_IMAGES images of two classes, some of them with odd names."""
    image_sets.write_folder(folder, per_label=NUM_IMAGES // 2)
    for index, name in enumerate(ODD_NAMES):
        (folder / "cat" / f"{5 * index // 2}.jpg").rename(folder / "cat" / name)


def assert_same(found: pathlib.Path, expected: pathlib.Path) -> None:
    """Checks that two datasets hold the same, and that nothing was left behind in either."""
    assert shard_digests(found) == shard_digests(expected)
    assert rejects(found) == rejects(expected)
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}
