"""A whole dataset of animations and still images, each frame an example of its own."""

from __future__ import annotations

import collections
import io
import json
import pathlib
from typing import Any

import numpy as np
import PIL.Image
import pytest

import imagebeam
from imagebeam.pipelines import convert, inspect_dataset
from imagebeam.pipelines.messages import printed_tables
from tests import animations, datasets, image_sets

COUNTS = {"a.gif": 5, "b.webp": 4, "c.png": 3, "d.tif": 6, "e.avif": 2, "f.gif": 1, "g.jpg": 1, "h.png": 1}
KINDS = {"webp": "webp", "png": "apng", "tif": "tiff"}
CONFIG: dict[str, Any] = {
    "source": {"by": "manifest", "manifest": {"path": "table.csv"}},
    "label": {"by": "column", "column": "label"},
    "columns": {"age": {"type": "int"}},
    "split": {"by": "hash", "fractions": {"train": 0.6, "test": 0.4}},
    "image": {"frames": "each", "encode": "webp", "webp": "lossless"},
    "output": {"num_shards": 2},
    "statistics": {"pixels": True},
    "duplicates": {"exact": "report"},
    "rejects": {"max_fraction": 0.2},
}
FRAMES = {
    name: [f"{name}#{frame:04}" for frame in range(count)] if count > 1 else [name] for name, count in COUNTS.items()
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("animations")
    rows = ["image,label,age"]
    for number, (name, count) in enumerate(COUNTS.items()):
        extension = name.partition(".")[2]
        data = animations.save(animations.draw(number, count), KINDS.get(extension, extension)) if count > 1 else b""
        still = "GIF" if extension == "gif" else "PNG" if extension == "png" else "JPEG"
        (root / name).write_bytes(data or image_sets.make_image(number, still))
        rows.append(f"{name},{'xy'[number % 2]},{20 + number}")
    data = animations.save(animations.draw(9, 4), "gif")
    (root / "cut.gif").write_bytes(data[: data.rindex(b"\x2c") + 14])  # ends in its last frame
    (root / "table.csv").write_text("\n".join([*rows, "cut.gif,x,5", ""]))
    return root


@pytest.fixture(scope="module")
def dataset(images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> convert.ConvertResult:
    return datasets.make(images, tmp_path_factory.mktemp("frames") / "out", **CONFIG)


def test_every_frame_is_one_example_with_the_label_and_columns_of_its_file(
    images: pathlib.Path, dataset: convert.ConvertResult
) -> None:
    output = pathlib.Path(dataset.output)
    expected = {key: name for name, keys in FRAMES.items() for key in keys}
    expected |= {f"cut.gif#{frame:04}": "cut.gif" for frame in range(3)}
    train, test = ({each["image/key"].decode(): each for each in datasets.read(output, s)} for s in ("train", "test"))
    assert sorted([*train, *test]) == sorted(expected)
    assert {expected[key] for key in train}.isdisjoint(expected[key] for key in test)
    for key, each in (train | test).items():
        name = expected[key]
        number = [*COUNTS, "cut.gif"].index(name)
        assert each["image/filename"].decode() == name
        assert each["image/format"] == b"webp"
        assert each["image/class/text"] == (b"x" if name == "cut.gif" else b"xy"[number % 2 :][:1])
        assert each["age"] == (5 if name == "cut.gif" else 20 + number)
        with PIL.Image.open(images / name) as opened:
            opened.seek(int(key.rpartition("#")[2]) if "#" in key else 0)
            shown = np.asarray(opened.convert("RGBA").convert("RGB"))
        assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(each["image/encoded"]))), shown)


def test_counts_take_in_each_frame(dataset: convert.ConvertResult) -> None:
    output = pathlib.Path(dataset.output)
    written = sum(COUNTS.values()) + 3
    counts = dataset.catalog.counts
    assert (counts.listed, counts.written, counts.rejected) == (written + 1, written, {"undecodable": 1})
    assert datasets.rejects(output) == {"cut.gif#0003": "undecodable"}
    assert "18 images came as further frames or pages of files" in dataset.plan.notes
    statistics = json.loads((output / "statistics.json").read_text())
    info = {each["name"]: each for each in json.loads((output / "dataset_info.json").read_text())["splits"]}
    for split in ("train", "test"):
        num_examples = dataset.catalog.splits[split].num_examples
        labels = collections.Counter(each["image/class/text"].decode() for each in datasets.read(output, split))
        assert statistics[split]["labels"] == dict(sorted(labels.items()))
        assert statistics[split]["formats"] == {"webp": num_examples}
        assert statistics[split]["pixels"]["images"] == num_examples
        assert sum(map(int, info[split]["shardLengths"])) == num_examples
    rows = dict(printed_tables.summary_rows(dataset.catalog, dataset.output, None))
    assert rows["listed"] == f"{written + 1} images (skipped: nothing)"
    assert inspect_dataset.write_report(dataset.output, output.with_name("report.html"))


def test_reader_gives_every_frame_by_its_key(dataset: convert.ConvertResult) -> None:
    reader = imagebeam.open_dataset(dataset.output)
    keys = []
    for split in ("train", "test"):
        options: dict[str, Any] = {"shuffle": None, "num_epochs": 1, "pad": True, "features": ("image/key",)}
        for batch in reader.as_tf(split, 4, image_size=8, crop="center", **options):
            keys += batch["image/key"].numpy()[batch["mask"].numpy()].tolist()
        source = reader.as_grain(split)
        assert [source[index]["image"].shape for index in range(len(source))] == [(16, 24, 3)] * len(source)
    assert len(set(keys)) == len(keys) == dataset.catalog.counts.written


@pytest.mark.parametrize("how", ["two processes", "beam's writer"])
def test_frames_are_the_same_however_they_are_written(
    images: pathlib.Path, dataset: convert.ConvertResult, tmp_path: pathlib.Path, how: str
) -> None:
    source = {**CONFIG["source"], "uri": images}
    config = {**CONFIG, "source": source, "output": {"uri": tmp_path / "out", "num_shards": 2}}
    if how == "two processes":
        result = convert.convert(config, workers=2)
        assert datasets.shard_digests(tmp_path / "out") == datasets.shard_digests(pathlib.Path(dataset.output))
        assert convert.convert(config, workers=2).state == "kept"
    else:
        config = {**config, "output": {**config["output"], "writer": "beam"}, "duplicates": {}}
        result = convert.convert(config, workers=1)
        for split in ("train", "test"):
            expected = datasets.keys(pathlib.Path(dataset.output), split)
            assert sorted(datasets.keys(tmp_path / "out", split)) == sorted(expected)
    assert result.catalog.counts == dataset.catalog.counts
