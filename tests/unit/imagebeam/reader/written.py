"""Writes datasets directly from values, without a pipeline: lists, bare pixels, or any other features."""

from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import example, features, records
from tests import pictures

BOX_KEYS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))
IMAGE = (
    features.Feature("image/channels", "image/channels", features.INT64),
    features.Feature("image/format", "image/format", features.BYTES),
    features.Feature("image/height", "image/height", features.INT64),
    features.Feature("image/key", "image/key", features.BYTES),
    features.Feature("image/width", "image/width", features.INT64),
    features.Feature("image/encoded", features.ENCODED, features.BYTES),
)
LABEL = features.Feature("image/class/label", features.LABEL, features.INT64)
MANY_LABELS = LABEL._replace(many=True)
BOXES = tuple(features.Feature(key, key, features.FLOAT, True) for key in BOX_KEYS)
OBJECTS = (
    *BOXES,
    features.Feature("image/object/class/label", "image/object/class/label", features.INT64, True),
    features.Feature("image/object/class/text", "image/object/class/text", features.BYTES, True),
)


def write(
    folder: pathlib.Path,
    wanted: Sequence[features.Feature],
    examples: Sequence[Mapping[str, Any]],
    *,
    labels: Sequence[str] = (),
    label_base: int = 0,
    num_shards: int = 2,
    config: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Any] | None = None,
    compression: str = "none",
    num_validation: int = 0,
) -> imagebeam.ImageDataset:
    """Writes a dataset with the split train, whose shards have equally many examples, except the last.

    Args:
        folder: folder to write to.
        wanted: its features; the image is put last.
        examples: values by the features' sources.
        labels: names of the classes.
        label_base: id of the first class.
        num_shards: number of shards.
        config: config in the catalog.
        statistics: further statistics of the split, besides formats and sizes.
        compression: of the shards, "none" or "gzip".
        num_validation: number of the last examples that are in a split validation instead.
    """
    ordered = sorted(wanted, key=lambda feature: (feature.source == features.ENCODED, feature.key))
    # A list of numbers as a column, which takes wrong values too.
    encoder = example.ExampleEncoder(
        [each._replace(source="pixels") if each.source == features.ENCODED and each.many else each for each in ordered]
    )
    (folder / "index").mkdir(parents=True)
    num_train = len(examples) - num_validation
    parts = (
        {"train": examples[:num_train], "validation": examples[num_train:]} if num_validation else {"train": examples}
    )
    splits, counted = {}, {}
    for split, part in parts.items():
        shards = []
        size = -(-len(part) // num_shards)
        for number in range(num_shards):
            name = f"{split}-{number:05d}-of-{num_shards:05d}.tfrecord"
            with open(folder / name, "wb", buffering=0) as file:
                writer = records.RecordWriter(file, compression)
                for values in part[number * size : (number + 1) * size]:
                    image = values[features.ENCODED]
                    plain = {**values, "pixels": image}
                    writer.write(*encoder.encode(plain, image if isinstance(image, bytes) else b""))
                writer.finish()
            shard = catalog_lib.Shard(name, writer.num_records, writer.num_bytes, writer.crc32c)
            if compression == "none":
                (folder / shard.index_name).write_bytes(records.encode_index(writer.offsets, writer.num_bytes))
            shards.append(shard)
        splits[split] = catalog_lib.Split(tuple(shards))
        counted[split] = _statistics_of(part) | dict(statistics or {})
    catalog = catalog_lib.Catalog(
        name="written",
        fingerprint="f1",
        compression=compression,
        splits=splits,
        labels=tuple(labels),
        label_kind="class" if labels else None,
        label_base=label_base,
        features=tuple(ordered),
        config=config or {},
        counts=catalog_lib.Counts(len(examples), len(examples), {}, {}),
        versions={},
        created="2026-01-01T00:00:00+00:00",
    )
    (folder / catalog_lib.CATALOG_FILE).write_text(catalog.to_json())
    (folder / catalog_lib.STATISTICS_FILE).write_text(json.dumps(counted))
    return imagebeam.open_dataset(str(folder))


def _statistics_of(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted: dict[str, Any] = {"formats": _count(each["image/format"].decode() for each in examples)}
    for side in ("height", "width"):
        sides = [int(np.ravel(each[f"image/{side}"])[0]) for each in examples]  # of a list of images the first
        counted[side] = {"min": min(sides), "max": max(sides), "sum": sum(sides)}
    return counted


def _count(names: Any) -> dict[str, int]:
    found = list(names)
    return {name: found.count(name) for name in sorted(set(found))}


def jpeg_values(index: int, width: int = 40, height: int = 30) -> dict[str, Any]:
    """Returns the values of an example with a JPEG, which depends on the index."""
    picture = pictures.photo(width, height).rotate(7 * index)
    return _values(index, pictures.encode(picture), "jpeg", (height, width, 3))


def raw_values(pixels: np.ndarray, index: int, kind: str = features.BYTES) -> dict[str, Any]:
    """Returns the values of an example with bare pixels, uint8 [height, width, channels], as bytes or as numbers."""
    flat = pixels.tobytes() if kind == features.BYTES else tuple(pixels.ravel().tolist())
    return _values(index, flat, "raw", pixels.shape)


def _values(index: int, image: Any, image_format: str, shape: Sequence[int]) -> dict[str, Any]:
    height, width, channels = shape
    return {
        features.ENCODED: image,
        "image/format": image_format.encode(),
        "image/height": height,
        "image/width": width,
        "image/channels": channels,
        "image/key": f"{index}".encode(),
    }


def object_values(count: int, index: int) -> dict[str, Any]:
    """Returns the values of `count` objects."""
    rng = np.random.default_rng(index)
    low, high = rng.uniform(0, 0.5, (2, count)), rng.uniform(0.5, 1, (2, count))
    sides = zip(BOX_KEYS, (low[0], high[0], low[1], high[1]))
    return {
        **{key: tuple(np.float32(side).tolist()) for key, side in sides},
        "image/object/class/label": tuple(range(index, index + count)),
        "image/object/class/text": tuple(f"thing {number}".encode() for number in range(count)),
    }


def stored_in(folder: pathlib.Path) -> list[bytes]:
    """Returns the records of the split in the order of the shards."""
    found = []
    for path in sorted(folder.glob("train-*")):
        found += [record.data for record in records.read_records(io.BytesIO(path.read_bytes()))]
    return found
