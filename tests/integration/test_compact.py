"""`imagebeam compact`: its snapshot is the one that a fresh conversion of the same input writes."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pathlib
import random
from typing import Any

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import compact, verify_dataset
from tests import command_line, image_sets, snapshot_sets

SEEDS = (2, 11)  # these two have both orders, splits, sources of sizes and ways of compression
_OF_ONE_RUN = ("report.html", "catalog.json", "report.json")  # they tell how the snapshot came about


class Table:
    """A table of images that changes from night to night, with rows that each stage rejects."""

    def __init__(self, folder: pathlib.Path, seed: int):
        self.folder = folder
        self.path = folder / "t.csv"
        self._random = random.Random(seed)
        self._rows: dict[str, dict[str, Any]] = {}
        self._num_made = 0
        folder.mkdir()

    def change(self, num_images: int) -> None:
        """Adds images, and changes, breaks, repairs and removes some."""
        for _ in range(num_images):
            self._num_made += 1
            key = f"{self._num_made:03d}\u00e9.jpg"
            group = self._num_made // 3
            self._rows[key] = {"image": key, "kind": f"k{group % 3}", "part": "", "score": 0.5, "group": group}
            self._write(key, image_sets.make_image(self._num_made))
        for key in self._random.sample(sorted(self._rows), len(self._rows) // 3):
            self._num_made += 1
            self._change(self._rows[key], self._random.randrange(9))
        with open(self.path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", "kind", "part", "score", "group", "size"])
            writer.writeheader()
            for row in self._rows.values():
                path = self.folder / row["image"]
                size = path.stat().st_size if path.exists() else 7
                part = row["part"] or ("train", "test")[row["group"] % 2]
                writer.writerow(row | {"part": part, "size": size})

    def _change(self, row: dict[str, Any], how: int) -> None:
        key = row["image"]
        if how == 0:
            del self._rows[key]
        elif how in (1, 2):
            self._write(key, b"\xff\xd8\xff\xe0 broken")  # rejected by the check
        elif how == 3:
            (self.folder / key).unlink(missing_ok=True)  # by the listing, or when it is read
        elif how == 4:
            row["kind"] = "" if row["kind"] else "k1"  # by the label
        elif how == 5:
            row["part"] = "" if row["part"] else "b/ad"  # by the split
        elif how == 6:
            row["score"] = 0.25 if row["score"] == "much" else "much"  # by a column
        else:
            self._write(key, image_sets.make_image(self._num_made))

    def _write(self, key: str, data: bytes) -> None:
        path = self.folder / key
        comment = b"\xff\xfe" + (2 + self._num_made).to_bytes(2, "big") + b" " * self._num_made
        path.write_bytes(data[:2] + comment + data[2:])  # no size twice: a trusted table tells no other difference
        os.utime(path, (1_700_000_000 + self._num_made,) * 2)


def _config(seed: int) -> dict[str, Any]:
    """Returns the sections of a config that decide how shards are divided and what statistics count."""
    choose = random.Random(-seed).choice
    has_trust = seed % 2 == 0
    hashed = {"by": "hash", "fractions": {"train": 0.6, "test": 0.4}, "group": "group", "seed": seed}
    sizes = [{"num_shards": {"train": 3, "test": 2}}, {"target_shard_bytes": 3000}, {"examples_per_shard": 4}, {}]
    return {
        "source": {"by": "manifest", "manifest": {"trust": has_trust, "size": "size" if has_trust else None}},
        "columns": {"score": {"type": "float"}},
        "label": {"by": "column", "column": "kind"},
        "split": choose([{"by": "column", "column": "part"}, hashed]),
        "output": {"compression": choose(["none", "gzip"]), "shuffle": choose(["hash", "none"]), **choose(sizes)},
        "statistics": {"pixels": choose([True, False])},
        "rejects": {"max_fraction": 0.9},
        "update": {"max_removed_fraction": 1.0},
    }


def _files(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the files of a snapshot; states without the rows, which move where the order does not depend on them."""
    files: dict[str, Any] = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*.*")}
    for name in files:
        if name.startswith("state/") and name.endswith(".gz"):
            state = json.loads(gzip.decompress(files[name]))
            files[name] = state | {"positions": [], "rejects": [each[:-1] for each in state["rejects"]]}
    return {name: data for name, data in files.items() if name not in _OF_ONE_RUN}


@pytest.mark.parametrize("seed", SEEDS)
def test_compacted_snapshot_is_the_one_that_a_fresh_conversion_writes(tmp_path: pathlib.Path, seed: int) -> None:
    table, sections = Table(tmp_path / "in", seed), _config(seed)
    for num_added in (16, 6, 0):
        table.change(num_added)
        snapshot_sets.update(table.path, tmp_path / "out", **sections)
    result = compact.compact(tmp_path / "out", workers=1)
    labels = snapshot_sets.latest(tmp_path / "out") / "labels.txt"
    sections["label"]["vocabulary"] = str(labels)
    fresh = snapshot_sets.update(table.path, tmp_path / "fresh" / "out", **sections)
    assert _files(snapshot_sets.latest(tmp_path / "out")) == _files(snapshot_sets.latest(tmp_path / "fresh" / "out"))
    assert result.catalog.counts == fresh.catalog.counts
    report = json.loads((snapshot_sets.latest(tmp_path / "out") / "report.json").read_text())
    assert (report["compacted"], report["base"], report["drift"]) == ("000003", None, None)
    assert sum(each["unchanged"] for each in report["splits"].values()) == result.catalog.counts.written
    assert {reason: each["kept"] for reason, each in report["rejects"].items()} == result.catalog.counts.rejected
    assert compact.compact(tmp_path / "out").state == "kept"
    assert verify_dataset.verify(tmp_path / "out", decode=True).problems == ()
    assert catalog_lib.load_catalog(tmp_path / "out" / "snapshots" / result.snapshot) == result.catalog


@pytest.mark.parametrize(
    ("options", "message"), [("--runner=DaskRunner", "choose another runner"), ("--no_such_option=1", "no_such_option")]
)
def test_compaction_that_cannot_run_says_why(tmp_path: pathlib.Path, options: str, message: str) -> None:
    output = tmp_path / "out"
    for number in (1, 2):
        image_sets.write_folder(tmp_path / "in", per_label=number)
        snapshot_sets.update(tmp_path / "in", output)
    with pytest.raises(errors.ConfigError, match=message):
        compact.compact(output, options)
    assert not list(output.glob("snapshots/000003"))


def test_old_snapshots_are_removed_with_and_without_a_table(tmp_path: pathlib.Path) -> None:
    folder, output = tmp_path / "in" / "cat", tmp_path / "out"
    folder.mkdir(parents=True)
    given = ("--keep-snapshots", "1")
    update = ("convert", "--input", folder.parent, "--output", output, "--update", "--workers", "1", *given)
    commands = [update, ("compact", output, *given, "-q")]
    for number, command in enumerate(commands, 1):
        (folder / f"{number}.jpg").write_bytes(image_sets.make_image(number))
        snapshot_sets.update(folder.parent, output)
        command_line.succeed(*command)
        assert len(list(output.glob("snapshots/*/catalog.json"))) == 1, command
    assert verify_dataset.verify(output, decode=True).problems == ()
