"""ReadDataset against the records as tests read them without imagebeam's reader."""

from __future__ import annotations

import collections
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing import util

import imagebeam.beam as imagebeam_beam
from imagebeam import errors, features
from imagebeam.pipelines import convert
from tests import case_tables, datasets, error_texts, image_sets, snapshot_sets
from tests.unit.imagebeam.reader import written

Example = imagebeam_beam.Example


def read(directory: pathlib.Path, check: Callable[[list[Example]], None], *options: str, **more: Any) -> None:
    """Reads a dataset in a pipeline, and calls `check` with its examples."""
    with beam.Pipeline(argv=list(options)) as pipeline:
        util.assert_that(pipeline | imagebeam_beam.ReadDataset(directory, **more), check)


def holds(expected: Sequence[dict[str, list[Any]]]) -> Callable[[list[Example]], None]:
    """A check that examples are these, in any order; each value is given as a list."""

    def check(found: list[Example]) -> None:
        as_lists = [{key: _as_list(value) for key, value in each.items()} for each in found]
        assert sorted(as_lists, key=str) == sorted(expected, key=str)

    return check


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, np.ndarray)) else [value]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two splits in several shards, without compression."""
    folder = tmp_path_factory.mktemp("dataset")
    image_sets.write_folder(folder / "images", per_label=20)
    split = {"by": "hash", "fractions": {"train": 0.7, "test": 0.3}}
    datasets.make(folder / "images", folder / "out", split=split, output={"num_shards": 3})
    return folder / "out"


@case_tables.each_case(
    "split, options",
    {
        "one split": ("train", ()),
        "all splits": (None, ()),
        "two workers": (None, ("--direct_running_mode=multi_processing", "--direct_num_workers=2")),
    },
)
def test_every_record_is_read_once(dataset: pathlib.Path, split: str | None, options: tuple[str, ...]) -> None:
    expected = [
        each for name in ([split] if split else ["train", "test"]) for each in datasets.read_lists(dataset, name)
    ]
    assert len(expected) == (40 if split is None else len(datasets.read_lists(dataset, "train")))
    read(dataset, holds(expected), *options, split=split)


def test_compressed_shards_and_chosen_features_are_read(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images")
    datasets.make(tmp_path / "images", tmp_path / "out", output={"compression": "gzip"})
    expected = datasets.read_lists(tmp_path / "out")
    read(tmp_path / "out", holds(expected))
    keys = ("image/key", "image/class/label")
    read(tmp_path / "out", holds([{key: each[key] for key in keys} for each in expected]), features=keys)


def test_types_of_values_follow_from_the_features(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images", ("cat",), per_label=2)
    table = tmp_path / "table.jsonl"
    table.write_text(
        '{"image": "images/cat/0.jpg", "price": 0.5, "sizes": [1, 2], "ratios": [0.25], "tags": ["a", "b"]}\n'
        '{"image": "images/cat/1.jpg", "price": 2, "sizes": [], "ratios": [], "tags": []}\n'
    )
    columns = {
        "price": {"type": "float"},
        "sizes": {"type": "int", "list": True},
        "ratios": {"type": "float", "list": True},
        "tags": {"type": "string", "list": True},
    }
    config = {"source": {"uri": str(table), "by": "manifest"}, "label": {"by": "none"}, "columns": columns}
    convert.convert({**config, "output": {"uri": str(tmp_path / "out")}}, workers=1)

    def check(found: list[Example]) -> None:
        one, other = sorted(found, key=lambda each: each["image/key"])
        assert [type(one[key]) for key in ("image/key", "image/height", "price")] == [bytes, int, float]
        assert (one["price"], other["price"]) == (0.5, 2.0)
        assert [(one[key].dtype, other[key].dtype) for key in ("sizes", "ratios")] == [
            (np.int64, np.int64),
            (np.float32, np.float32),
        ]
        assert [list(one["sizes"]), list(one["ratios"]), one["tags"]] == [[1, 2], [0.25], [b"a", b"b"]]
        assert [list(other["sizes"]), list(other["ratios"]), other["tags"]] == [[], [], []]

    read(tmp_path / "out", check)


def test_arrays_have_their_shape(tmp_path: pathlib.Path) -> None:
    latent = features.Feature("latent", "columns/latent", features.FLOAT, True, (2, 3))
    names = features.Feature("names", "columns/names", features.BYTES, True, (2,))
    examples = [
        {**written.jpeg_values(index), latent.source: (float(index),) * 6, names.source: (b"a", b"b")}
        for index in range(2)
    ]
    written.write(tmp_path / "good", (*written.IMAGE, latent, names), examples)

    def check(found: list[Example]) -> None:
        for each in found:
            assert each["latent"].dtype == np.float32
            assert each["latent"].tolist() == [[float(each["image/key"])] * 3] * 2
            assert each["names"].tolist() == [b"a", b"b"]
        assert len(found) == 2

    read(tmp_path / "good", check)
    written.write(tmp_path / "bad", (*written.IMAGE, latent, names), [{**examples[0], latent.source: (0.5,)}])
    with error_texts.raises_in_pipeline("record-broken"):
        read(tmp_path / "bad", check)


def test_removed_records_of_snapshots_are_left_out(tmp_path: pathlib.Path) -> None:
    images, output = tmp_path / "images", tmp_path / "out"
    image_sets.write_folder(images)
    snapshot_sets.update(images, output)
    (images / "cat" / "1.jpg").unlink()
    (images / "dog" / "2.jpg").write_bytes(image_sets.make_image(77))
    snapshot_sets.update(images, output)

    def holds_living(snapshot: str | None, num: int) -> None:
        def check(found: list[Example]) -> None:
            counts = collections.Counter(each["image/key"] for each in found)
            assert (len(counts), set(counts.values())) == (num, {1})
            assert (b"cat/1.jpg" in counts) == (num == 20)

        read(output, check, split="train", snapshot=snapshot)

    holds_living(None, 19)
    holds_living("000001", 20)


def damage(shard: pathlib.Path, how: str) -> None:
    data = bytearray(shard.read_bytes())
    if how == "missing":
        shard.unlink()
    elif how == "bit":
        data[len(data) // 2] ^= 1
    elif how == "short":
        del data[-3:]
    elif how == "twice":  # whole records, more than the catalog says
        data = data * 2
    if shard.exists():
        shard.write_bytes(data)


@case_tables.each_case(
    "how, code",
    {
        "missing": ("missing", "shard-missing"),
        "a bit is changed": ("bit", "record-broken"),
        "cut short": ("short", "record-broken"),
        "more records": ("twice", "shard-differs"),
    },
)
def test_damage_fails_the_pipeline(
    tmp_path_factory: pytest.TempPathFactory, dataset: pathlib.Path, how: str, code: str
) -> None:
    copy = tmp_path_factory.mktemp("copy") / "out"
    shutil.copytree(dataset, copy)
    damage(next(copy.glob("train-00001-*")), how)
    with error_texts.raises_in_pipeline(code):
        read(copy, holds([]))


def test_dataset_replaced_since_the_pipeline_was_built_fails_it(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images")
    datasets.make(tmp_path / "images", tmp_path / "out")
    reads = imagebeam_beam.ReadDataset(tmp_path / "out")
    datasets.make(tmp_path / "images", tmp_path / "out", overwrite=True, split={"seed": 1})
    with error_texts.raises_in_pipeline("dataset-replaced"), beam.Pipeline() as pipeline:
        pipeline | reads


@case_tables.each_case(
    "options, code",
    {
        "split": ({"split": "valid"}, "split-unknown"),
        "feature": ({"features": ["image/keys"]}, "feature-unknown"),
        "snapshot": ({"snapshot": 3}, "snapshot-unknown"),
    },
)
def test_wrong_argument_is_an_error_when_the_pipeline_is_built(
    dataset: pathlib.Path, options: dict[str, Any], code: str
) -> None:
    with error_texts.raises(code):
        imagebeam_beam.ReadDataset(dataset, **options)


def test_folder_without_a_dataset_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CatalogError):
        imagebeam_beam.ReadDataset(tmp_path)
