"""The presets `imagefolder` and `imagefolder_metadata`: what TFDS and Hugging Face take, as it is."""

from __future__ import annotations

import csv
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from tests import command_line, datasets, docs_pages, image_sets, parsed_records

PAGE = "recipes/imagefolder.md"
Row = Mapping[str, Any]


def write_csv(path: pathlib.Path, rows: Sequence[Row]) -> None:
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def write_jsonl(path: pathlib.Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: pathlib.Path, rows: Sequence[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def write_birds(root: pathlib.Path, formats: Mapping[str, str]) -> dict[str, Row]:
    """Writes a table and its images for each split; returns the rows by key."""
    expected: dict[str, Row] = {}
    for seed, (split, table_format) in enumerate(formats.items()):
        (root / split / "more").mkdir(parents=True)
        rows = []
        for index in range(4 + seed):
            name = f"more/{index}.png" if index == 1 else f"{index}.png"
            (root / split / name).write_bytes(image_sets.make_image(seed * 10 + index, "PNG"))
            rows.append({"file_name": name, "species": ("owl", "jay")[index % 2], "age": index * 10 + seed})
            expected[f"{split}/{name}"] = rows[-1]
        WRITERS[table_format](root / split / f"metadata.{table_format}", rows)
    return expected


def make(root: pathlib.Path, output: pathlib.Path, preset: str, *overrides: str) -> Any:
    """Converts by a preset in this process."""
    sections = config_lib.load_config(preset, overrides).model_dump(mode="json", exclude_unset=True)
    return datasets.make(root, output, **sections)


COLUMNS = ("label.by=column", "label.column=species", "columns.age={type: int}")


@pytest.mark.parametrize("table_format", list(WRITERS))
def test_command_of_the_page_takes_tables_of_hugging_face(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    expected = write_birds(tmp_path / "birds", {"train": table_format, "test": table_format, "val": table_format})
    (tmp_path / "birds" / "train" / "in no table.png").write_bytes(image_sets.make_image(99, "PNG"))
    docs_pages.run_command(docs_pages.blocks(PAGE, "sh")[1], tmp_path)
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/key": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/class/text": tf.io.FixedLenFeature([], tf.string),
        "age": tf.io.FixedLenFeature([], tf.int64),
    }
    found = {}
    for split, folder in (("train", "train"), ("test", "test"), ("validation", "val")):
        for example in parsed_records.parse((tmp_path / "birds-tfrecords").glob(f"{split}-*"), spec):
            key = example["image/key"].decode()
            assert key.split("/")[0] == folder
            assert example["image/encoded"] == (tmp_path / "birds" / key).read_bytes()
            assert example["image/class/label"] == ["jay", "owl"].index(example["image/class/text"].decode())
            found[key] = (example["image/class/text"].decode(), example["age"])
    assert found == {key: (row["species"], row["age"]) for key, row in expected.items()}

    monkeypatch.chdir(tmp_path)
    by_reader, plain = docs_pages.blocks(PAGE, "python")
    batch = docs_pages.run_snippet(by_reader)["batch"]
    assert batch["image"].shape == (2, 64, 64, 3)
    for key, age in zip(batch["image/key"].numpy(), batch["age"].numpy()):
        assert age == expected[key.decode()]["age"]
    assert len(list(docs_pages.run_snippet(plain)["examples"])) == 4


def test_tables_of_several_formats_are_read_in_their_order(tmp_path: pathlib.Path) -> None:
    root, formats = tmp_path / "in", {"a": "jsonl", "b": "parquet", "c": "csv"}
    expected = write_birds(root, formats)
    settings = (*COLUMNS, "output.shuffle=none", "split={by: none}")
    make(root, tmp_path / "out", "imagefolder_metadata", *settings)
    assert datasets.keys(tmp_path / "out") == list(expected)  # positions go on from table to table


def test_one_table_at_the_root_names_images_in_folders_of_splits(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "in"
    expected = write_birds(root, {"train": "csv", "test": "csv"})
    for split in ("train", "test"):
        (root / split / "metadata.csv").unlink()
    write_csv(root / "metadata.csv", [{**row, "file_name": key} for key, row in expected.items()])
    make(root, tmp_path / "out", "imagefolder_metadata")
    assert sorted(datasets.keys(tmp_path / "out", "test")) == sorted(key for key in expected if key.startswith("test"))
    assert len(datasets.keys(tmp_path / "out", "train")) == 4


def test_tables_in_hidden_folders_are_left_out(tmp_path: pathlib.Path) -> None:
    expected = write_birds(tmp_path / "in", {"train": "csv"})
    (tmp_path / "in" / ".cache").mkdir()
    write_csv(tmp_path / "in" / ".cache" / "metadata.csv", [{"file_name": "0.png"}])
    (tmp_path / "in" / "train" / "loop").symlink_to(tmp_path / "in")
    make(tmp_path / "in", tmp_path / "in" / "out", "imagefolder_metadata", "rejects.max_fraction=0")
    assert sorted(datasets.keys(tmp_path / "in" / "out")) == sorted(expected)


def test_tables_that_cannot_be_used_are_refused(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "in"
    image_sets.write_folder(root / "train", per_label=1)
    message = r"no table matches '\*\*/metadata\.\*' below '.*/in'; check --input"
    with pytest.raises(errors.ConfigError, match=message):
        make(root, tmp_path / "out", "imagefolder_metadata")
    (root / "train" / "metadata.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match=r"metadata\.json' is none of \.csv, \.tsv, \.jsonl"):
        make(root, tmp_path / "out", "imagefolder_metadata")
    (root / "test").mkdir()
    for split, column in (("train", "species"), ("test", "kind")):
        write_csv(root / split / "metadata.csv", [{"file_name": "cat/0.jpg", column: "cat"}])
    with pytest.raises(errors.ConfigError, match=r"test/metadata\.csv' has no column 'species'; its columns are"):
        make(root, tmp_path / "out", "imagefolder_metadata", "label.by=column", "label.column=species")
    with pytest.raises(errors.ConfigError, match=r"'/\*/m\.csv' is an absolute glob; give the folder as"):
        make(root, tmp_path / "out", "imagefolder_metadata", "source.manifest.path=/*/m.csv")
    pairing = ("source.manifest.image=null", "source.manifest.files='*.png'")
    with pytest.raises(errors.ConfigError, match=r"is a glob, and source\.manifest\.files goes with the rows of one"):
        make(root, tmp_path / "out", "imagefolder_metadata", *pairing)
    with pytest.raises(errors.ConfigError, match=r"below '.*/nowhere' cannot be looked for \(No such file"):
        make(tmp_path / "nowhere", tmp_path / "out", "imagefolder_metadata")


def test_rows_without_a_file_and_outside_of_their_folder_are_rejects(tmp_path: pathlib.Path) -> None:
    write_birds(tmp_path / "in", {"train": "csv", "test": "csv"})
    with open(tmp_path / "in" / "test" / "metadata.csv", "a") as table:
        table.write("gone.png,owl,1\n../train/0.png,owl,1\n")
    make(tmp_path / "in", tmp_path / "out", "imagefolder_metadata", "rejects.max_fraction=0.5")
    assert datasets.rejects(tmp_path / "out") == {"test/gone.png": "not_found", "../train/0.png": "outside_root"}
    details = (tmp_path / "out" / "rejects.jsonl").read_text()
    assert f"line 7 of {tmp_path}/in/test/metadata.csv" in details  # the line in its own table


def test_table_that_breaks_off_ends_the_run(tmp_path: pathlib.Path) -> None:
    write_birds(tmp_path / "in", {"train": "csv", "test": "csv"})
    with open(tmp_path / "in" / "train" / "metadata.csv", "a") as table:
        table.write('"4.png,owl,1\n')
    with pytest.raises(errors.ConfigError, match=r"train/metadata\.csv' cannot be read to its end: line \d+"):
        make(tmp_path / "in", tmp_path / "out", "imagefolder_metadata")
    assert not (tmp_path / "out").exists()


def test_splits_and_labels_in_folders_are_those_of_tfds(tmp_path: pathlib.Path) -> None:
    for split, per_label in (("train", 6), ("test", 3)):
        image_sets.write_folder(tmp_path / "pets" / split, per_label=per_label)
    docs_pages.run_command(docs_pages.blocks(PAGE, "sh")[0], tmp_path)
    theirs = tfds.ImageFolder(str(tmp_path / "pets"))
    ours = tfds.builder_from_directory(str(tmp_path / "pets-tfrecords"))
    assert ours.info.features["image/class/label"].names == theirs.info.features["label"].names
    for split in ("train", "test"):
        expected = {
            (each["image/filename"].numpy().decode().partition(str(tmp_path / "pets"))[2].lstrip("/"))
            for each in theirs.as_dataset(split=split)
        }
        found = {
            each["image/key"].numpy().decode(): int(each["image/class/label"]) for each in ours.as_dataset(split=split)
        }
        assert set(found) == expected
        assert all(["cat", "dog"].index(key.split("/")[1]) == label for key, label in found.items())


def test_page_of_a_folder_for_each_class_is_right(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = image_sets.write_folder(tmp_path / "photos", per_label=10)
    (command,) = docs_pages.blocks("recipes/image_folder.md", "sh")
    docs_pages.run_command(command, tmp_path)
    train, test = (datasets.keys(tmp_path / "photos-tfrecords", split) for split in ("train", "test"))
    assert sorted(train + test) == sorted(keys)
    assert [sum(key.startswith(label) for key in test) for label in ("cat", "dog")] == [2, 2]
    monkeypatch.chdir(tmp_path)
    by_reader, plain = docs_pages.blocks("recipes/image_folder.md", "python")
    images, labels = next(iter(docs_pages.run_snippet(by_reader)["train"]))
    assert (images.shape, labels.shape) == ((4, 64, 64, 3), (4,))
    examples = docs_pages.run_snippet(plain)["examples"]
    found = sorted((each["image/encoded"].numpy(), int(each["image/class/label"])) for each in examples)
    assert found == sorted(((tmp_path / "photos" / key).read_bytes(), int(key.startswith("dog"))) for key in train)


def test_pages_of_recipes_link_to_existing_files() -> None:
    folder = command_line.ROOT / "docs" / "recipes"
    for page in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (folder / target).exists(), f"{page.name} links to {target}"
    index = (folder / "README.md").read_text()
    assert all(f"`{name}`" in index for name in config_lib.preset_names())
