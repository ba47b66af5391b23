"""Parquet files with the bytes of images, as on the Hugging Face Hub, become datasets that plain TensorFlow reads."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pyarrow.parquet
import pytest
import tensorflow as tf

import imagebeam
from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from tests import docs_pages, image_sets, parquet_files, snapshot_sets

NAMES = ("zebra", "ant", "monkey")  # not sorted: the ids are those of the files
SPEC = {
    "image/key": tf.io.FixedLenFeature([], tf.string),
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/class/text": tf.io.FixedLenFeature([], tf.string),
}


OPTIONS: tuple[dict[str, Any], ...] = (  # of the four files
    {"compression": "none", "use_dictionary": False},
    {"row_group_size": 4},
    {"compression": "zstd"},
    {},
)


def write_hub(folder: pathlib.Path) -> None:
    """Two files of train, one of validation and one of test, in which the classes are not published."""
    for number, (split, of) in enumerate((("train", 2), ("train", 2), ("validation", 1), ("test", 1))):
        indexes = range(number * 10, number * 10 + 10)
        columns = {
            "label": [-1 if split == "test" else index % 3 for index in indexes],
            "caption": [f"picture {index}" for index in indexes],
            "tags": [["a", "b"][: index % 3] for index in indexes],
        }
        path = folder / "data" / f"{split}-{number % 2 * (of - 1):05d}-of-{of:05d}.parquet"
        parquet_files.write(path, list(map(image_sets.make_image, indexes)), columns, NAMES, **OPTIONS[number])
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


def preset(source: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    """Does what `imagebeam convert --config parquet` does, in this process."""
    overrides = (f"source.uri={source}", f"output.uri={output}", *overrides)
    return convert.convert(config_lib.load_config("parquet", overrides), workers=1)


def plan(source: pathlib.Path, output: pathlib.Path, *overrides: str) -> elements.DatasetPlan:
    """Returns the plan of the same job."""
    overrides = (f"source.uri={source}", f"output.uri={output}", *overrides)
    return convert.plan(config_lib.load_config("parquet", overrides))


def read(folder: pathlib.Path, split: str, **spec: Any) -> dict[str, dict[str, Any]]:
    """Returns the examples of a split by key, read by TensorFlow alone."""
    files = sorted(map(str, folder.glob(f"{split}-*.tfrecord")))
    found = {}
    for record in tf.data.TFRecordDataset(files):
        parsed = tf.io.parse_single_example(record, SPEC | spec)
        row = {key: tf.sparse.to_dense(v) if isinstance(v, tf.SparseTensor) else v for key, v in parsed.items()}
        found[parsed["image/key"].numpy().decode()] = {key: value.numpy() for key, value in row.items()}
    return found


def test_parquet_preset_keeps_images_classes_and_columns(tmp_path: pathlib.Path) -> None:
    write_hub(tmp_path / "in")
    more = ("columns={caption: {}, tags: {list: true}}", "source.include=data/[tv][ra]*.parquet")
    result = preset(tmp_path / "in", tmp_path / "out", *more)
    assert result.catalog.labels == NAMES and result.catalog.counts.rejected == {}
    spec = {"caption": tf.io.FixedLenFeature([], tf.string), "tags": tf.io.VarLenFeature(tf.string)}
    num_found = 0
    for path in (tmp_path / "in" / "data").glob("[tv][ra]*"):
        found = read(tmp_path / "out", path.name.partition("-")[0], **spec)
        for number, row in enumerate(pyarrow.parquet.read_table(path).to_pylist()):
            example = found[f"data/{path.name}/{number}"]
            assert example["image/encoded"] == row["image"]["bytes"]
            assert example["image/class/label"] == row["label"]
            assert example["image/class/text"].decode() == NAMES[row["label"]]
            assert example["caption"].decode() == row["caption"]
            assert [tag.decode() for tag in example["tags"]] == row["tags"]
            num_found += 1
    assert num_found == result.catalog.counts.written == 30
    dataset = imagebeam.open_dataset(str(tmp_path / "out"))
    assert {name: split.num_examples for name, split in dataset.splits.items()} == {"train": 20, "validation": 10}


def test_classes_that_are_not_published_are_named_as_such(tmp_path: pathlib.Path) -> None:
    write_hub(tmp_path / "in")
    refused = plan(tmp_path / "in", tmp_path / "out")
    assert refused.action == "refuse" and refused.rejected == {"no_label": 10}
    assert "test-00000-of-00001.parquet: column 'label' is -1, which `datasets` stores where" in refused.message
    unlabelled = plan(tmp_path / "in" / "data" / "test-*", tmp_path / "out", "label={by: none}")
    assert {name: split.num_records for name, split in unlabelled.splits.items()} == {"test": 10}


def test_update_takes_in_a_file_that_was_added(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "in" / "data"
    first, second = (list(map(image_sets.make_image, range(start, start + 6))) for start in (0, 6))
    parquet_files.write(source / "train-00000-of-00002.parquet", first, {"label": [0, 1, 2] * 2}, NAMES)
    sections: dict[str, Any] = {
        "source": {"by": "parquet"},
        "label": {"by": "column", "column": "label"},
        "split": {"by": "column", "column": "split"},
        "output": {"num_shards": 1},
        "update": {"compare": "content"},
    }
    output = tmp_path / "out"
    snapshot_sets.update(source.parent, output, **sections)
    parquet_files.write(source / "train-00001-of-00002.parquet", second, {"label": [0, 1, 2] * 2}, NAMES)
    # one image of the first file is replaced, and written in other pages with the others
    changed = [*first[:2], image_sets.make_image(99), *first[3:]]
    parquet_files.write(
        source / "train-00000-of-00002.parquet", changed, {"label": [0, 1, 2] * 2}, NAMES, row_group_size=2
    )
    os.utime(source / "train-00000-of-00002.parquet", ns=(1, 1))
    result = snapshot_sets.update(source.parent, output, **sections)
    assert (result.catalog.counts.written, result.catalog.snapshot["added"]) == (12, 6)
    assert result.catalog.snapshot["changed"] == 1
    data = {key: stored.data for key, stored in snapshot_sets.living(output).items()}
    assert data == {
        f"data/train-{i // 6:05d}-of-00002.parquet/{i % 6}": each for i, each in enumerate(changed + second)
    }


def test_file_with_bytes_is_told_from_a_table_of_paths(tmp_path: pathlib.Path) -> None:
    path = parquet_files.write(tmp_path / "train-00000-of-00001.parquet", [b"x"])
    sections = {"source": {"uri": str(path)}, "output": {"uri": str(tmp_path / "out")}, "label": {"by": "none"}}
    message = (
        "is not a folder; for Parquet with the bytes of images set source.by: parquet, with their paths source.by: m"
    )
    with pytest.raises(errors.ConfigError, match=message):
        convert.plan(sections)
    with pytest.raises(
        errors.ConfigError, match=r"column 'image' holds the bytes of images, not .*: set source.by: parq"
    ):
        convert.plan(sections | {"source": {"uri": str(path), "by": "manifest"}})
    as_records = convert.plan(sections | {"source": {"uri": str(tmp_path), "by": "tfrecord"}})
    assert "there is no TFRecord file in" in as_records.message
    with pytest.raises(errors.ConfigError, match=r"is neither a folder nor a file whose name ends in \.parquet"):
        (tmp_path / "a.csv").write_text("x")
        convert.plan(sections | {"source": {"uri": str(tmp_path / "a.csv"), "by": "parquet"}})


def test_broken_files_end_the_run_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    write_hub(tmp_path / "in")
    path = tmp_path / "in" / "data" / "validation-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    refused = plan(tmp_path / "in", tmp_path / "out")
    assert (refused.action, refused.exit_code) == ("refuse", 2)
    assert f"Parquet file '{path}' was cut short: it ends with" in refused.message


def test_recipe_runs_as_printed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hub(tmp_path / "cats")
    (tmp_path / "cats" / "data" / "test-00000-of-00001.parquet").unlink()
    command, *_ = docs_pages.blocks("recipes/parquet.md", "sh")
    docs_pages.run_command(command, tmp_path)
    monkeypatch.chdir(tmp_path)
    with_tensorflow, with_imagebeam = docs_pages.blocks("recipes/parquet.md", "python")[:2]
    for names in map(docs_pages.run_snippet, (with_tensorflow, with_imagebeam)):
        assert len(list(names["train"].take(2))) == 2
