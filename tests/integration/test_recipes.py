"""Every command of docs/recipes, as it is printed, and every preset: each record is compared with what was written.

The records are read by TensorFlow alone, and their pictures by Pillow.
"""

from __future__ import annotations

import io
import json
import pathlib
import re
import shlex
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

import imagebeam
from imagebeam.pipelines.config import model as config_lib
from tests import array_sets, case_tables, command_line, datasets, docs_pages, recipe_sets
from tests.recipe_sets import ANY, Features, Splits, Writer
from tests.servers import gcs

PAGES = command_line.ROOT / "docs" / "recipes"
OF_EACH = {  # features that are compared with the picture and the key
    "image/key",
    "image/filename",
    "image/format",
    "image/height",
    "image/width",
    "image/channels",
    "image/colorspace",
}


class Recipe(NamedTuple):
    """One command, what it reads, and how its records are known."""

    write: Writer
    command: str  # `PAGE NUMBER` for that command of a page, or the arguments after --config
    shares: Mapping[str, int] = types.MappingProxyType({})  # number of examples by split, where the hash chooses
    image: str = "image/encoded"
    key: str = "image/key"
    file: str = ""  # of YAML that the page shows and the command names
    more: Sequence[str] = ()  # further settings


FACES = ["split.counts={train: 30, test: null}"]  # the preset trains on the first 6,000
RECIPES = {
    "cats_dogs": Recipe(recipe_sets.cats_dogs, "cats_dogs 0", {"train": 20, "test": 5}, "image_raw", "id"),
    "cats_dogs-zip": Recipe(recipe_sets.zipped_cats_dogs, "archives 0", {"train": 20}, "image_raw", "id"),
    "image_folder-zips": Recipe(recipe_sets.zips_of_splits, "archives 1"),
    "image_folder": Recipe(recipe_sets.photos, "image_folder 0", {"train": 32, "test": 8}),
    "imagenet_files": Recipe(recipe_sets.imagenet_files, "imagenet_files --input in --output shards"),
    "flowers": Recipe(recipe_sets.flowers, "flowers 0", {"train": 48, "validation": 12}),
    "imagefolder": Recipe(recipe_sets.imagefolder, "imagefolder 0"),
    "imagefolder_metadata": Recipe(recipe_sets.birds, "imagefolder 1"),
    "imagenet": Recipe(recipe_sets.imagenet, "imagenet 0", key="image/filename"),
    "utkface": Recipe(recipe_sets.utkface, "paths_and_lists 0"),
    "oxford_pets": Recipe(recipe_sets.oxford_pets, "oxford_pets --input in --output shards"),
    "food101": Recipe(recipe_sets.food101, "food101 --input in --output shards"),
    "kaggle": Recipe(recipe_sets.kaggle, "tables 0", {"train": 18, "validation": 2}),
    "tfrecorder": Recipe(recipe_sets.tfrecorder, "tables 1"),
    "cub200": Recipe(recipe_sets.cub200, "tables 2"),
    "captions": Recipe(recipe_sets.captions("jsonl"), "captions 0"),
    "captions-rows": Recipe(recipe_sets.captions("csv"), "captions 1"),
    "multilabel": Recipe(recipe_sets.multilabel("separator"), "multilabel 0"),
    "multilabel-columns": Recipe(recipe_sets.multilabel("columns"), "multilabel 1"),
    "regression": Recipe(recipe_sets.regression(False), "regression 0"),
    "regression-columns": Recipe(recipe_sets.regression(True), "regression 1"),
    "faces_age": Recipe(recipe_sets.faces(False), "faces_age 0", {}, "img", "image/filename", more=FACES),
    "faces_age-names": Recipe(recipe_sets.faces(True), "faces_age 1", {}, "img", "image/filename", more=FACES),
    "cifar10": Recipe(recipe_sets.cifar10(False), "arrays 0"),
    "cifar10-binary": Recipe(recipe_sets.cifar10(True), "arrays 0"),
    "npz": Recipe(recipe_sets.medmnist, "arrays 1"),
    "hdf5": Recipe(recipe_sets.pcam, "arrays 2"),
    "fer2013": Recipe(recipe_sets.fer2013("emotion", "pixels", "Usage"), "arrays 3"),
    "fer2013-icml": Recipe(recipe_sets.fer2013("emotion", " Usage", " pixels"), "arrays 3"),
    "npz-hash": Recipe(recipe_sets.npz_digits, "arrays 4"),
    "hdf5-names": Recipe(recipe_sets.catvnoncat, "hdf5 --input in --output shards"),
    "cifar100": Recipe(recipe_sets.cifar100(False), "cifar100 --input in --output shards"),
    "cifar100-binary": Recipe(recipe_sets.cifar100(True), "cifar100 --input in --output shards"),
    "svhn": Recipe(recipe_sets.svhn(False), "svhn --input in --output shards"),
    "svhn-compressed": Recipe(recipe_sets.svhn(True), "svhn --input in --output shards"),
    "mnist_csv": Recipe(recipe_sets.mnist_csv(True), "mnist_csv --input in --output shards"),
    "mnist_csv-plain": Recipe(recipe_sets.mnist_csv(False), "mnist_csv --input in --output shards"),
    "emnist": Recipe(recipe_sets.emnist("letters", 26, 1), "mnist 0"),
    "emnist-digits": Recipe(recipe_sets.emnist("digits", 10, 0), "mnist 1"),
    "mnist": Recipe(recipe_sets.mnist(), "mnist 2", image="image_raw", key="image_raw"),
    "mnist-gz": Recipe(recipe_sets.mnist("train-images", "t10k-labels"), "mnist 2", image="image_raw", key="image_raw"),
    "parquet": Recipe(recipe_sets.parquet, "parquet 0"),
    "webdataset": Recipe(recipe_sets.webdataset(".tar"), "webdataset 0"),
    "webdataset-gz": Recipe(recipe_sets.webdataset(".tar.gz"), "webdataset 0"),
    "tfrecord": Recipe(recipe_sets.tfrecord(""), "tfrecord 0"),
    "tfrecord-gz": Recipe(recipe_sets.tfrecord("GZIP"), "tfrecord 0"),
    "tfrecord-base64": Recipe(recipe_sets.recorded, "tfrecord 1"),
    "yolo": Recipe(recipe_sets.yolo("images/train", "images/val"), "detection 0"),
    "yolo-yaml": Recipe(recipe_sets.yolo("train/images", "valid/images"), "detection 1"),
    "voc": Recipe(recipe_sets.voc, "detection 2"),
    "labelme": Recipe(recipe_sets.labelme(False), "detection 3"),
    "labelme-masks": Recipe(recipe_sets.labelme(True), "detection 4"),
    "box_csv": Recipe(recipe_sets.box_csv, "detection 5"),
    "coco": Recipe(recipe_sets.coco(), "coco 0"),
    "coco-masks": Recipe(recipe_sets.coco(has_masks=True), "coco 1"),
    "coco_captions": Recipe(recipe_sets.coco("captions"), "coco 2"),
    "coco_keypoints": Recipe(recipe_sets.coco("keypoints"), "coco 3"),
    "lvis": Recipe(recipe_sets.coco("lvis"), "coco 4"),
    "coco_panoptic": Recipe(recipe_sets.panoptic, "coco 5"),
    "segmentation": Recipe(recipe_sets.ade20k, "segmentation 0"),
    "segmentation-voc": Recipe(recipe_sets.voc_masks, "segmentation 1", file="voc.yaml"),
    "carvana": Recipe(recipe_sets.carvana, "carvana --input in --output shards"),
    "camvid": Recipe(recipe_sets.camvid, "camvid --input in --output shards"),
}


def commands(page: str) -> list[list[str]]:
    """Returns the arguments of the conversions that a page shows."""
    texts = "\n".join(docs_pages.blocks(f"recipes/{page}.md", "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(text)[1:] for text in texts if text.startswith("imagebeam convert ")]


def run(recipe: Recipe, folder: pathlib.Path, *more: str) -> tuple[command_line.Completed, pathlib.Path]:
    """Runs the command of a recipe in `folder`; returns how it ended, and its output."""
    page, _, number = recipe.command.partition(" ")
    if number.isdigit():
        arguments = [each.replace("gs://", "") for each in commands(page)[int(number)]]
    else:
        arguments = ["convert", "--config", *recipe.command.split()]
    if recipe.file:
        (folder / recipe.file).write_text(docs_pages.blocks(f"recipes/{page}.md", "yaml")[0])
    settings = [word for each in recipe.more for word in ("--set", each)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = command_line.call(*arguments, *settings, *more, "--workers", "1")
    return done, folder / arguments[arguments.index("--output") + 1]


def read(output: pathlib.Path, key: str) -> dict[str, dict[bytes, dict[str, list[Any]]]]:
    """Returns the examples by split and key, each feature as a list."""
    catalog = json.loads((output / "catalog.json").read_text())
    splits: dict[str, dict[bytes, dict[str, list[Any]]]] = {}
    for split, described in catalog["splits"].items():
        splits[split] = {}
        paths = [str(output / shard["name"]) for shard in described["shards"]]
        compression = "GZIP" if catalog["compression"] == "gzip" else ""
        for record in tf.data.TFRecordDataset(paths, compression).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            values = {
                name: list(getattr(each, each.WhichOneof("kind")).value) if each.WhichOneof("kind") else []
                for name, each in features.items()
            }
            assert splits[split].setdefault(values[key][0], values) is values  # no key twice
    return splits


def compare(found: list[Any], expected: Any) -> None:
    """Compares the values of a feature."""
    if callable(expected):
        expected(found)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(recipe_sets.pixels(found[0]), expected)
    else:
        wanted = [each.encode() if isinstance(each, str) else each for each in recipe_sets.listed(expected)]
        assert found == (pytest.approx(wanted, abs=3e-6) if any(isinstance(each, float) for each in wanted) else wanted)


def compare_picture(values: dict[str, list[Any]], image: str, key: str) -> None:
    """Compares what a record says of its picture with the picture."""
    if image == "image/encoded" and values["image/format"] != [b"raw"]:
        picture = Image.open(io.BytesIO(values[image][0]))
        stated = {
            "image/format": [str(picture.format).lower().encode()],
            "image/height": [picture.height],
            "image/width": [picture.width],
            "image/channels": [len(picture.getbands())],
            "image/colorspace": [{"L": b"GRAY"}.get(picture.mode, picture.mode.encode())],
            "image/filename": [key.rpartition("/")[2].encode()],
        }
        for name, value in stated.items():
            assert values.get(name, value) == value, name


def check(recipe: Recipe, output: pathlib.Path, expected: Splits) -> None:
    """Compares all records with what was written."""
    splits = read(output, recipe.key)
    assert {split: len(splits[split]) for split in recipe.shares} == dict(recipe.shares)
    if ANY in expected:
        splits = {ANY: {key: each for split in splits.values() for key, each in split.items()}}
    assert splits.keys() == expected.keys()
    for split, wanted in expected.items():
        found = {
            key if isinstance(next(iter(wanted)), bytes) else key.decode(): each for key, each in splits[split].items()
        }
        assert sorted(found) == sorted(wanted)
        for key, features in wanted.items():
            values = found[key]
            own = {recipe.image, recipe.key}
            assert values.keys() - OF_EACH - own == features.keys() - OF_EACH - own
            for name, value in features.items():
                compare(values[name], value)
            compare_picture(values, recipe.image, key)


@pytest.mark.parametrize("name", RECIPES)
def test_records_hold_what_was_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    recipe = RECIPES[name]
    expected = recipe.write(tmp_path)
    done, output = run(recipe, tmp_path)
    assert done.returncode == 0, done.stderr
    check(recipe, output, expected)
    assert datasets.rejects(output) == {}
    verified = command_line.call("verify", output, "--decode")
    assert verified.returncode == 0, verified.stderr
    before = datasets.shard_digests(output)
    done, _ = run(recipe, tmp_path)  # the same command again
    assert (done.returncode, datasets.shard_digests(output)) == (0, before)
    if name in RUN_PAGE:
        monkeypatch.chdir(tmp_path)
        run_code_of_the_page(name)
    if name in READ_BY_TFDS:
        compare_with_tensorflow_datasets(name, tmp_path, output)
    if name in READ_BY_IMAGEBEAM:
        compare_with_the_reader(name, output)


class Variant(NamedTuple):
    """A recipe with settings that its page names, or of any dataset."""

    recipe: str
    settings: Sequence[str]
    edit: Callable[[Features], Features] = lambda features: features  # of each example
    split_of: Callable[[str], str] | None = None  # of each key


def _without(*names: str) -> Callable[[Features], Features]:
    return lambda features: {name: value for name, value in features.items() if name not in names}


def _with(**values: Any) -> Callable[[Features], Features]:
    return lambda features: features | {name.replace("__", "/"): value for name, value in values.items()}


def _described(features: Features) -> Features:
    """Adds the other cells of an example of a tar."""
    number = features["image/class/label"] // 7
    own = {"txt": f"text {number}\n", "json.caption": f"picture {number}", "json.tags": ["a", "b"][: number % 3]}
    return features | own


def _bare(features: Features) -> Features:
    return features | {"image/encoded": features["image/encoded"].tobytes()}


def _coarse_numbers(features: Features) -> Features:
    return features | {"coarse_label": array_sets.COARSE.index(features["coarse_label"])}


def _one_more(features: Features) -> Features:
    return features | {"image/class/label": [label + 1 for label in features["image/class/label"]]}


def _named(features: Features) -> Features:
    return features | {TEXT: str(features["image/class/label"])}


TEXT = "image/class/text"
VARIANTS = {
    "compressed": Variant("image_folder", ["output.compression=gzip"]),
    "by-beams-own-writer": Variant(
        "segmentation",
        ["output.writer=beam", "output.num_shards={train: 2, validation: 1}", "split.names=[train, validation]"],
    ),
    "base-of-1": Variant("multilabel", ["label.base=1"], _one_more),
    "no-label": Variant("webdataset", ["label={by: none}"], _without("image/class/label")),
    "cells": Variant(
        "webdataset",
        ["columns={txt: {}, json.caption: {}, json.tags: {list: true}}", "split={by: column, column: split}"],
        _described,
        lambda key: key.split("-")[1],
    ),
    "cell-of-json": Variant("webdataset", ["label.column=json.size.w"], _with(image__class__label=24)),
    "first-of-all": Variant(
        "webdataset",
        ["split={by: index, counts: {validation: 8, train: null}}"],
        split_of=lambda key: "validation" if 20 <= int(key[-6:]) < 28 else "train",  # of the first tar by name,
    ),
    "bare-pixels": Variant("cifar10-binary", ["image.encode=keep"], _bare),
    "numbers-for-names": Variant("cifar100", ["columns.coarse_label.type=int"], _coarse_numbers),
    "classes-for-numbers": Variant("mnist", ["label.type=class", f"features.{TEXT}=null"]),
    "columns-of-parquet": Variant("parquet", ["columns={caption: {}}"], _with(caption="not asked for")),
    "columns-of-coco": Variant("coco", ["columns={date_captured: {}}"], _with(date_captured="2013-11-14 17:02:52")),
    "names-of-written-numbers": Variant("mnist_csv", ["label.type=class"], _named),
    "some-features-kept": Variant(
        "tfrecord", ["source.tfrecord.keep=[weight]"], _without("id", TEXT, "image/object/bbox/xmin")
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_settings_change_what_they_say(tmp_path: pathlib.Path, name: str) -> None:
    variant = VARIANTS[name]
    recipe = RECIPES[variant.recipe]
    expected: Splits = {}
    for split, found in recipe.write(tmp_path).items():
        for key, features in found.items():
            own = variant.split_of(key) if variant.split_of else split
            expected.setdefault(own, {})[key] = variant.edit(features)
    done, output = run(recipe, tmp_path, *(word for each in variant.settings for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    check(recipe, output, expected)


def test_order_of_the_source_is_kept_and_read_over_a_network(tmp_path: pathlib.Path) -> None:
    recipe = RECIPES["segmentation"]
    expected = recipe.write(tmp_path)
    plain = ("--set", "output.shuffle=none", "--set", "output.num_shards=1")
    _, output = run(recipe, tmp_path, *plain)
    assert [*read(output, "image/key")["train"]] == sorted(key.encode() for key in expected["train"])
    over_fsspec = ("--input", f"local://{tmp_path}/ADEChallengeData2016", "--output", "remote")
    done, _ = run(recipe, tmp_path, *plain, *over_fsspec, "--set", "source.bytes_ahead=3000")
    assert done.returncode == 0, done.stderr
    assert datasets.shard_digests(tmp_path / "remote") == datasets.shard_digests(output)


def test_table_has_every_preset_and_every_command_of_the_pages() -> None:
    shown = {f"{page.stem} {number}" for page in PAGES.glob("*.md") for number in range(len(commands(page.stem)))}
    assert shown <= {recipe.command for recipe in RECIPES.values()}
    tried = {name.partition("-")[0] for name in RECIPES}
    assert tried == set(config_lib.preset_names())


@case_tables.each_case("name", ["image_folder", "cats_dogs", "segmentation", "utkface"])
def test_saved_listing_gives_the_dataset_of_the_source(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recipe = RECIPES[name]
    recipe.write(tmp_path)
    _, output = run(recipe, tmp_path)
    page, _, number = recipe.command.partition(" ")
    arguments = commands(page)[int(number)][1:]
    monkeypatch.chdir(tmp_path)
    command_line.succeed("plan", *arguments, "--save-listing", "listing.jsonl", "--overwrite")
    arguments[arguments.index("--input") + 1] = "listing.jsonl"
    arguments[arguments.index("--output") + 1] = "listed"
    command_line.succeed("convert", *arguments, "--set", "source.by=listing", "--workers", "1")
    assert datasets.shard_digests(tmp_path / "listed") == datasets.shard_digests(output)


@pytest.mark.integration
@case_tables.each_case("name", ["flowers", "imagefolder_metadata", "parquet", "webdataset", "coco"])
def test_bucket_gives_the_shards_of_the_folder(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    recipe = RECIPES[name]
    recipe.write(tmp_path)
    (folder,) = tmp_path.iterdir()
    done, output = run(recipe, tmp_path)
    assert done.returncode == 0, done.stderr
    page, _, number = recipe.command.partition(" ")
    arguments = commands(page)[int(number)]
    arguments[arguments.index("--output") + 1] = str(tmp_path / "from-bucket")
    source = arguments[arguments.index("--input") + 1].removeprefix("gs://").removeprefix(folder.name)
    arguments[arguments.index("--input") + 1] = f"gs://{folder.name}{source}"
    with gcs.run(tmp_path_factory.mktemp("gcs")) as emulator:
        bucket = emulator.bucket(folder.name)
        for below in folder.iterdir():
            if below.is_dir():
                gcs.upload(below, bucket, below.name)
            else:
                bucket.blob(below.name).upload_from_filename(str(below))
        done = command_line.run(*arguments, "--workers", "1", environment=emulator.environment)
    assert done.returncode == 0, done.stderr
    assert datasets.shard_digests(tmp_path / "from-bucket") == datasets.shard_digests(output)


# --- readers of the records ------------------------------------------------------------------------------------------

RUN_PAGE = (  # recipes whose page has code that reads the records
    "cats_dogs",
    "image_folder",
    "flowers",
    "imagefolder_metadata",
    "imagenet",
    "captions",
    "captions-rows",
    "multilabel",
    "multilabel-columns",
    "regression-columns",
    "mnist",
    "parquet",
    "webdataset",
    "tfrecord",
    "coco",
    "segmentation",
    "segmentation-voc",
)


def run_code_of_the_page(name: str) -> None:
    """Runs what the page shows, in the folder of its command."""
    names: dict[str, Any] = {"__name__": "__snippet__"}
    for code in docs_pages.blocks(f"recipes/{RECIPES[name].command.partition(' ')[0]}.md", "python"):
        if "matplotlib" not in code:
            exec(compile(code, f"{name}.md", "exec"), names)
            for feed in {"train", "examples", "batches"} & names.keys():
                first = next(iter(names[feed]))
                values = [np.asarray(each) for each in (first.values() if isinstance(first, dict) else first)]
                assert all(each.astype(float).std() > 0 for each in values if each.ndim > 2)  # pictures, not paper
            if name == "flowers" and "history" in names:
                assert np.isfinite([*names["history"].history["loss"], *names["history"].history["val_loss"]]).all()


def test_code_of_the_page_gives_the_labels_of_the_files(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe_sets.cats_dogs(tmp_path)
    run(RECIPES["cats_dogs"], tmp_path)
    monkeypatch.chdir(tmp_path)
    names = docs_pages.run_snippet(docs_pages.blocks("recipes/cats_dogs.md", "python")[0])
    paths = sorted((tmp_path / "train").iterdir())
    resized = [tf.image.resize(tf.io.decode_jpeg(path.read_bytes(), channels=3), [160, 160]) for path in paths]
    expected = tf.keras.applications.mobilenet_v2.preprocess_input(tf.stack(resized)).numpy()
    seen = []
    for images, labels in (batch for split in ("train", "test") for batch in names[split].as_numpy_iterator()):
        for image, label in zip(images, labels):
            distances = np.abs(expected - image).max((1, 2, 3))
            seen.append(int(distances.argmin()))
            assert distances.min() < 1e-4 and label == paths[seen[-1]].name.startswith("dog")
    assert sorted(seen) == list(range(25))


READ_BY_TFDS = ("imagefolder", "faces_age-names", "multilabel", "coco-masks", "tfrecord", "cifar10", "coco_keypoints")
READ_BY_IMAGEBEAM = ("webdataset", "mnist", "cifar10-binary", "coco", "multilabel")


def compare_with_tensorflow_datasets(name: str, folder: pathlib.Path, output: pathlib.Path) -> None:
    recipe = RECIPES[name]
    builder = tfds.builder_from_directory(str(output))
    ours = read(output, recipe.key)
    decoders = {recipe.image: tfds.decode.SkipDecoding()} if recipe.image == "image/encoded" else None
    for split, examples in ours.items():
        found = {}
        for each in builder.as_dataset(split, decoders=decoders).as_numpy_iterator():
            found[each[recipe.key]] = {name: np.ravel(value).tolist() for name, value in each.items()}
        assert found == {key: {name: [*values] for name, values in each.items()} for key, each in examples.items()}
    if name == "imagefolder":
        theirs = tfds.ImageFolder(str(folder / "pets"))
        assert builder.info.features["image/class/label"].names == theirs.info.features["label"].names


def compare_with_the_reader(name: str, output: pathlib.Path) -> None:
    recipe = RECIPES[name]
    ds = imagebeam.open_dataset(str(output))
    for split, examples in read(output, recipe.key).items():
        source = ds.as_grain(split)
        assert len(source) == len(examples)
        stored = {}
        for each in examples.values():
            data = each[recipe.image][0]
            picture = np.frombuffer(data, np.uint8).reshape(28, 28, 1) if name == "mnist" else recipe_sets.pixels(data)
            stored[np.broadcast_to(picture, (*picture.shape[:2], 3)).tobytes()] = each
        for index in range(len(source)):
            each = source[index]
            same = stored.pop(np.ascontiguousarray(each["image"]).tobytes())
            if name in ("webdataset", "mnist", "cifar10-binary"):
                assert each["label"] == same["label" if name == "mnist" else "image/class/label"][0]
        assert not stored


def test_links_of_the_pages_and_their_table_of_presets_are_whole() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (PAGES / target).exists(), f"{page.name} links to {target}"
    index = (PAGES / "README.md").read_text()
    assert all(f"`{name}`" in index for name in config_lib.preset_names())
