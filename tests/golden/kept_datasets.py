"""Datasets and reader states of released versions, in tests/golden/kept/VERSION, and how they are made and read.

Every later version must read them: see docs/format-promise.md. They are made once, at a release, by

    python -m tests.golden.kept_datasets --write

which refuses to replace those that are there.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import imagebeam
from imagebeam.pipelines import index_dataset
from tests import coco_sets, datasets, foreign_shards, number_files, snapshot_sets, written_files

FOLDER = pathlib.Path(__file__).parent / "kept"
IMAGES = pathlib.Path(__file__).parent / "images"
DATASETS = ("photos", "packed", "boxes", "depth", "nights", "foreign")
CASES = "states.json"
MTIME = 1_700_000_000  # of every image of nights
BROKEN = "cat/broken.jpg", b"no image"
NIGHTS: dict[str, Any] = {
    "label": {"by": "directory", "base": 1},
    "split": {"by": "hash", "fractions": {"train": 0.7, "test": 0.3}},
    "rejects": {"max_fraction": 0.5},
    "output": {"report": False},
    "update": {"max_removed_fraction": 1.0},
}
BEFORE, _AFTER = 2, 3  # batches before a state, and those after it that are kept
_SMALL = {"image_size": 8, "features": ["image/key"]}
_GLOBAL = {"shuffle": "global", "seed": 5, **_SMALL}
_STREAM = {"shuffle": "stream", "shuffle_records": 4, "seed": 7, **_SMALL}
_BUCKETS = {"shuffle": "global", "seed": 2, "buckets": [[8, 8], [8, 12], [12, 8]], "features": ["image/key"]}
_KEYPOINTS = {"image_size": 16, "objects": {"max": 4, "masks": [8, 8], "keypoints": True}}

_PHOTOS = [["photos", "train"]]
_TWO = [["photos", "train"], ["nights", "train"]]
# Name: the datasets with their splits, their weights, the options; a dataset "nights@2" is its second snapshot.
_READERS: dict[str, tuple[list[list[str]], Any, dict[str, Any]]] = {
    "global": (_PHOTOS, None, _GLOBAL),
    "global of one of two processes": (_PHOTOS, None, {**_GLOBAL, "process_count": 2, "process_index": 1}),
    "stream": (_PHOTOS, None, {**_STREAM, "crop": "random"}),
    "stream of one of two processes": (_PHOTOS, None, {**_STREAM, "process_count": 2, "process_index": 1}),
    "in order": ([["photos", "train+test"]], None, {"shuffle": None, "crop": "center", **_SMALL}),
    "part of a split": ([["photos", "train[:50%]+test"]], None, {**_GLOBAL, "crop": "pad"}),
    "later epochs": (_PHOTOS, None, {**_GLOBAL, "first_epoch": 2, "num_epochs": 3, "crop": "squash"}),
    "repeats": (_PHOTOS, None, {**_GLOBAL, "repeats": 2, "metadata": True}),
    "map": (_PHOTOS, None, {**_GLOBAL, "map": "draw", "map_id": "draw"}),
    "buckets": (_PHOTOS, None, _BUCKETS),
    "mixture": (_TWO, [0.75, 0.25], _GLOBAL),
    "mixture in streams": (_TWO, [0.75, 0.25], _STREAM),
    "mixture that changes": (_TWO, [[0, [1, 0]], [4, [0.25, 0.75]]], _GLOBAL),
    "mixture in buckets": (_TWO, [0.5, 0.5], _BUCKETS),
    "compressed": ([["packed", "train"]], None, _STREAM),
    "objects": ([["boxes", "train"]], None, {"shuffle": "global", "features": ["image/key"], **_KEYPOINTS}),
    "depth": ([["depth", "train"]], None, {"shuffle": "global", **_SMALL}),
    "snapshot with removed records": ([["nights", "train"]], None, _GLOBAL),
    "earlier snapshot": ([["nights@2", "train"]], None, _STREAM),
    "foreign": ([["foreign", "train"]], None, {"shuffle": "global", "image_size": 8}),
}


def draw(example: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A function for `map` that shows its random numbers."""
    return {**example, "drawn": np.int64(rng.integers(1 << 40))}


def open_reader(folder: pathlib.Path, case: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns what has the feeds of a case, and the options of a feed. `folder` holds the datasets."""
    parts = []
    for place, split in case["parts"]:
        name, _, snapshot = place.partition("@")
        parts.append((imagebeam.open_dataset(folder / name, snapshot=int(snapshot) if snapshot else None), split))
    options = dict(case["options"])
    if "map" in options:
        options["map"] = draw
    if "objects" in options:
        options["objects"] = imagebeam.Objects(**{**options["objects"], "masks": tuple(options["objects"]["masks"])})
    if "buckets" in options:
        options["buckets"] = [tuple(each) for each in options["buckets"]]
    if case["weights"] is not None:
        return imagebeam.Mixture(parts, case["weights"]), options
    [(dataset, split)] = parts
    return _OneSplit(dataset, split), options


class _OneSplit:
    """A split with the feeds of a mixture: without naming the split."""

    def __init__(self, dataset: imagebeam.ImageDataset, split: str):
        self._dataset, self._split = dataset, split

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: getattr(self._dataset, name)(self._split, *arguments, **options)


def describe(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a batch for JSON: of pixels the means of four quarters, for libraries decode to other last bits."""
    return {name: _describe(name, np.asarray(value)) for name, value in sorted(batch.items())}


def _describe(name: str, value: np.ndarray) -> Any:
    if name in ("image", "object/masks", "masks"):
        axes = (1, 2) if name == "image" else (-2, -1)
        halves = [half for part in np.array_split(value, 2, axes[0]) for half in np.array_split(part, 2, axes[1])]
        return [
            value.shape[1:],
            *([round(float(each), 1) for each in half.mean(axes, dtype=float).ravel()] for half in halves),
        ]
    if value.dtype == object:
        return [each.decode() for each in value.tolist()]
    return np.round(value, 4).tolist() if value.dtype.kind == "f" else value.tolist()


def read_case(folder: pathlib.Path, parts: Sequence[Sequence[str]], weights: Any, options: Any) -> dict[str, Any]:
    """Returns a case: its reader, a state, and the batches after it."""
    case = {"parts": parts, "weights": weights, "options": options}
    reader, asked = open_reader(folder, case)
    batches = reader.as_numpy(4, **asked)
    for _ in range(BEFORE):
        next(batches)
    state = batches.state().to_dict()
    return {**case, "state": state, "after": [describe(next(batches)) for _ in range(_AFTER)]}


def write_images(folder: pathlib.Path, images: Mapping[str, bytes]) -> None:
    """Writes images by key, all with the same time of change."""
    written_files.write(folder, dict(images))
    for key in images:
        os.utime(folder / key, (MTIME, MTIME))


def photos() -> dict[str, bytes]:
    """Returns 20 images by key."""
    return {str(path.relative_to(IMAGES)): path.read_bytes() for path in sorted(IMAGES.glob("*/*"))}


def _write_all(target: pathlib.Path, scratch: pathlib.Path) -> None:
    images = photos()
    write_images(scratch / "photos", images)
    plain = {"label": NIGHTS["label"], "split": NIGHTS["split"]}
    about = {"license": "https://spdx.org/licenses/Apache-2.0.html", "version": "1.0.0"}
    shards = {"report": False, "num_shards": {"train": 3, "test": 1}}
    datasets.make(scratch / "photos", target / "photos", output=shards, about=about, **plain)
    datasets.make(scratch / "photos", target / "packed", output={**shards, "compression": "gzip"}, **plain)
    _write_boxes(target / "boxes", scratch / "boxes")
    depth = [number_files.make_numbers("uint16", 1, seed, (10, 12)) for seed in range(8)]
    number_files.write_folder(scratch / "depth", depth)
    datasets.make(scratch / "depth", target / "depth", image={"dtype": "uint16"}, output={"report": False})
    _write_nights(target / "nights", scratch / "nights", images)
    for shard in range(2):
        path = target / "foreign" / f"train-{shard:05d}-of-00002"
        foreign_shards.write(path, map(foreign_shards.imagenet, range(6 * shard, 6 * shard + 6)))
    index_dataset.index(target / "foreign")


def _write_boxes(target: pathlib.Path, scratch: pathlib.Path) -> None:
    for split, fields in coco_sets.write(scratch).items():
        coco_sets.save(scratch, split, coco_sets.with_keypoints(fields))
    source = {"by": "coco", "coco": {"masks": True, "keypoints": True}}
    datasets.make(scratch, target, source=source, output={"report": False, "num_shards": 2})


def _write_nights(target: pathlib.Path, scratch: pathlib.Path, images: Mapping[str, bytes]) -> None:
    """Writes three snapshots: 13 images and one that is broken; more, others and fewer; compared by content."""
    keys = sorted(images)
    first = [key for number, key in enumerate(keys) if number % 3]
    write_images(scratch, {key: images[key] for key in first} | dict([BROKEN]))
    snapshot_sets.update(scratch, target, **NIGHTS)
    write_images(scratch, {key: images[key] for key in keys[:12:3]} | {first[0]: images[keys[0]]})
    (scratch / first[3]).unlink()
    snapshot_sets.update(scratch, target, **NIGHTS)
    write_images(scratch, {keys[12]: images[keys[12]]})
    by_content = {**NIGHTS["update"], "compare": "content"}
    snapshot_sets.update(scratch, target, **{**NIGHTS, "update": by_content})


def versions() -> Iterator[pathlib.Path]:
    """Yields the folder of each version whose datasets are kept."""
    return (folder for folder in sorted(FOLDER.iterdir()) if folder.is_dir())


def main(arguments: Sequence[str]) -> None:
    target = FOLDER / imagebeam.__version__
    if list(arguments) != ["--write"]:
        sys.exit("usage: python -m tests.golden.kept_datasets --write")
    if target.exists():
        sys.exit(f"{target} is there: datasets of a release never change; before the release, remove the folder first")
    with tempfile.TemporaryDirectory() as scratch:
        _write_all(target, pathlib.Path(scratch))
    cases = {name: read_case(target, *reader) for name, reader in _READERS.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(case, sort_keys=True)}" for name, case in cases.items())
    (target / CASES).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
