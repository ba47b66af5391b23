"""Every command of docs/recipes, as it is printed, and every preset: the records are those of golden/recipes.json.

The records are read by TensorFlow alone, and their pictures by Pillow. In the golden file <NAME> is the content of a
file of the input; other pictures have a digest of their pixels.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import PIL
import pytest
import tensorflow as tf
from PIL import Image

import imagebeam
from imagebeam.pipelines.config import model as config_lib
from tests import (
    annotation_sets,
    array_sets,
    case_tables,
    command_line,
    datasets,
    docs_pages,
    golden_texts,
    recipe_sets,
)
from tests.recipe_sets import Writer
from tests.servers import gcs

PAGES = command_line.ROOT / "docs" / "recipes"
SHOWN = 2  # examples of each split that the golden file spells out; its digest is of all
of = functools.partial


class Recipe(NamedTuple):
    """One command, and what it reads."""

    write: Writer
    command: str  # `PAGE NUMBER` for that command of a page, or the preset with --input IN --output OUT
    settings: Sequence[str] = ()
    key: str = "image/key"
    file: str = ""  # of YAML that the page shows and the command names


def cifar10(is_binary: bool, folder: pathlib.Path) -> None:
    array_sets.write_cifar10(folder / "cifar-10-batches-py", is_binary=is_binary)


def cifar100(is_binary: bool, folder: pathlib.Path) -> None:
    array_sets.write_cifar100(folder / "in", is_binary=is_binary)


ANNOTATED = {  # by the name of the set, in the order of the page: the folder of its command
    "kitti": "kitti",
    "dota": "dota",
    "visdrone": "visdrone",
    "wider_face": "wider",
    "mot": "mot",
    "open_images": "openimages",
    "severstal": "severstal",
}
CVAT_MASKS = ["source.annotations.syntax=cvat", "source.annotations.masks=true"]


def annotated(name: str, folder: pathlib.Path) -> None:
    annotation_sets.SETS[name].write(folder / ANNOTATED.get(name, "in"))


FACES = ["split.counts={train: 30, test: null}"]  # the preset trains on the first 6,000
RECIPES = {
    "cats_dogs": Recipe(recipe_sets.cats_dogs, "cats_dogs 0", key="id"),
    "cats_dogs-zip": Recipe(recipe_sets.zipped_cats_dogs, "archives 0", key="id"),
    "image_folder-zips": Recipe(recipe_sets.zips_of_splits, "archives 1"),
    "image_folder": Recipe(recipe_sets.photos, "image_folder 0"),
    "imagenet_files": Recipe(recipe_sets.imagenet_files, "imagenet_files"),
    "flowers": Recipe(recipe_sets.flowers, "flowers 0"),
    "imagefolder": Recipe(recipe_sets.imagefolder, "imagefolder 0"),
    "imagefolder_metadata": Recipe(recipe_sets.birds, "imagefolder 1"),
    "imagenet": Recipe(recipe_sets.imagenet, "imagenet 0", key="image/filename"),
    "utkface": Recipe(recipe_sets.utkface, "paths_and_lists 0"),
    "oxford_pets": Recipe(recipe_sets.oxford_pets, "oxford_pets"),
    "food101": Recipe(recipe_sets.food101, "food101"),
    "kaggle": Recipe(recipe_sets.kaggle, "tables 0"),
    "urls": Recipe(recipe_sets.urls, "urls 0"),
    "sidecars": Recipe(recipe_sets.sidecars, "sidecars 0"),
    "sidecars-json": Recipe(recipe_sets.sidecars, "sidecars 1"),
    "tfrecorder": Recipe(recipe_sets.tfrecorder, "tables 1"),
    "cub200": Recipe(recipe_sets.cub200, "tables 2"),
    "captions": Recipe(of(recipe_sets.captions, "jsonl"), "captions 0"),
    "captions-rows": Recipe(of(recipe_sets.captions, "csv"), "captions 1"),
    "multilabel": Recipe(recipe_sets.multilabel, "multilabel 0"),
    "multilabel-columns": Recipe(recipe_sets.celeba, "multilabel 1"),
    "regression": Recipe(recipe_sets.regression, "regression 0"),
    "regression-columns": Recipe(recipe_sets.regression, "regression 1"),
    "faces_age": Recipe(of(recipe_sets.faces, False), "faces_age 0", FACES, "image/filename"),
    "faces_age-names": Recipe(of(recipe_sets.faces, True), "faces_age 1", FACES, "image/filename"),
    "cifar10": Recipe(of(cifar10, False), "arrays 0"),
    "cifar10-binary": Recipe(of(cifar10, True), "arrays 0"),
    "npz": Recipe(recipe_sets.medmnist, "arrays 1"),
    "hdf5": Recipe(recipe_sets.pcam, "arrays 2"),
    "fer2013": Recipe(of(recipe_sets.fer2013, ("emotion", "pixels", "Usage")), "arrays 3"),
    "fer2013-icml": Recipe(of(recipe_sets.fer2013, ("emotion", " Usage", " pixels")), "arrays 3"),
    "npz-hash": Recipe(recipe_sets.npz_digits, "arrays 4"),
    "hdf5-names": Recipe(recipe_sets.catvnoncat, "hdf5"),
    "cifar100": Recipe(of(cifar100, False), "cifar100"),
    "cifar100-binary": Recipe(of(cifar100, True), "cifar100"),
    "svhn": Recipe(of(recipe_sets.svhn, False), "svhn"),
    "svhn-compressed": Recipe(of(recipe_sets.svhn, True), "svhn"),
    "mnist_csv": Recipe(of(recipe_sets.mnist_csv, True), "mnist_csv"),
    "mnist_csv-plain": Recipe(of(recipe_sets.mnist_csv, False), "mnist_csv"),
    "emnist": Recipe(of(recipe_sets.emnist, "letters", 26, 1), "mnist 0"),
    "emnist-digits": Recipe(of(recipe_sets.emnist, "digits", 10, 0), "mnist 1"),
    "mnist": Recipe(of(recipe_sets.mnist, ()), "mnist 2", key="image_raw"),
    "mnist-gz": Recipe(of(recipe_sets.mnist, ("train-images", "t10k-labels")), "mnist 2", key="image_raw"),
    "parquet": Recipe(recipe_sets.parquet, "parquet 0"),
    "webdataset": Recipe(of(recipe_sets.webdataset, ".tar"), "webdataset 0"),
    "webdataset-gz": Recipe(of(recipe_sets.webdataset, ".tar.gz"), "webdataset 0"),
    "tfrecord": Recipe(of(recipe_sets.tfrecord, ""), "tfrecord 0"),
    "tfrecord-gz": Recipe(of(recipe_sets.tfrecord, ".gz"), "tfrecord 0"),
    "tfrecord-base64": Recipe(recipe_sets.recorded, "tfrecord 1"),
    "yolo": Recipe(of(recipe_sets.yolo, "images/train", "images/val"), "detection 0"),
    "yolo-yaml": Recipe(of(recipe_sets.yolo, "train/images", "valid/images"), "detection 1"),
    "voc": Recipe(recipe_sets.voc, "detection 2"),
    "labelme": Recipe(recipe_sets.labelme, "detection 3"),
    "labelme-masks": Recipe(recipe_sets.labelme, "detection 4"),
    **{f"annotations-{name}": Recipe(of(annotated, name), f"annotations {n}") for n, name in enumerate(ANNOTATED)},
    "annotations-cvat": Recipe(of(annotated, "cvat"), "annotations", CVAT_MASKS),
    "box_csv": Recipe(recipe_sets.box_csv, "detection 5"),
    "coco": Recipe(of(recipe_sets.coco, "instances"), "coco 0"),
    "coco-masks": Recipe(of(recipe_sets.coco, "instances"), "coco 1"),
    "coco_captions": Recipe(of(recipe_sets.coco, "captions"), "coco 2"),
    "coco_keypoints": Recipe(of(recipe_sets.coco, "person_keypoints"), "coco 3"),
    "lvis": Recipe(of(recipe_sets.coco, "lvis"), "coco 4"),
    "coco_panoptic": Recipe(recipe_sets.panoptic, "coco 5"),
    "pairs": Recipe(recipe_sets.pairs, "pairs 0"),
    "image_lists": Recipe(recipe_sets.image_lists, "image_lists 0"),
    "parquet-lists": Recipe(recipe_sets.galleries, "image_lists 1"),
    "segmentation": Recipe(recipe_sets.ade20k, "segmentation 0"),
    "segmentation-voc": Recipe(recipe_sets.voc_masks, "segmentation 1", file="voc.yaml"),
    "carvana": Recipe(recipe_sets.carvana, "carvana"),
    "camvid": Recipe(recipe_sets.camvid, "camvid"),
}
BEAMS_WRITER = ["output.writer=beam", "output.num_shards={train: 2, validation: 1}", "split.names=[train, validation]"]
CELLS = "columns={txt: {}, json.caption: {}, json.tags: {list: true}}"
FEATURES = {"weight": "columns={weight: {type: float}}", "renamed": "features={columns/weight: w, columns/id: null}"}
VARIANTS = {  # recipes with settings that their page names, or of any dataset
    ("image_folder", "compressed"): ["output.compression=gzip"],
    ("segmentation", "by-beams-own-writer"): BEAMS_WRITER,
    ("multilabel", "base-of-1"): ["label.base=1"],
    ("webdataset", "no-label"): ["label={by: none}"],
    ("webdataset", "cells"): [CELLS, "split={by: column, column: split}"],
    ("webdataset", "cell-of-json"): ["label.column=json.size.w"],
    ("webdataset", "first-of-all"): ["split={by: index, counts: {validation: 8, train: null}}"],
    ("cifar10-binary", "bare-pixels"): ["image.encode=keep"],
    ("cifar100", "numbers-for-names"): ["columns.coarse_label.type=int"],
    ("mnist", "classes-for-numbers"): ["label.type=class", "features.image/class/text=null"],
    ("parquet", "columns"): ["columns={caption: {}}"],
    ("coco", "columns"): ["columns={date_captured: {}}"],
    ("mnist_csv", "names-of-written-numbers"): ["label.type=class"],
    ("tfrecord", "keep"): ["source.tfrecord.keep=[weight, id]"],
    ("tfrecord", "keep-nothing"): ["source.tfrecord.keep=[]"],
    ("tfrecord", "column"): [FEATURES["weight"]],
    ("tfrecord", "column-and-keep"): [FEATURES["weight"], "source.tfrecord.keep=[id]"],
    ("tfrecord", "column-and-all"): [FEATURES["weight"], "source.tfrecord.keep=all"],
    ("tfrecord", "renamed"): [FEATURES["renamed"]],
    ("tfrecord", "label-of-text"): ["label={by: column, column: image/class/text}"],
    ("tfrecord", "no-label"): ["label={by: none}"],
}
RUN_ELSEWHERE = ("bands", "medical")  # test_recipes_bands.py, test_recipes_medical.py
# Of pages whose other commands are run here: test_recipes_pairs.py, test_recipes_defects.py.
COMMANDS_RUN_ELSEWHERE = frozenset({"pairs 1", "pairs 2", "segmentation 2", "segmentation 3"})
CASES = RECIPES | {f"{name}: {what}": RECIPES[name]._replace(settings=each) for (name, what), each in VARIANTS.items()}


def commands(page: str) -> list[list[str]]:
    """Returns the arguments of the conversions that a page shows."""
    texts = "\n".join(docs_pages.blocks(f"recipes/{page}.md", "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(text)[1:] for text in texts if text.startswith("imagebeam convert ")]


def run(recipe: Recipe, folder: pathlib.Path, *more: str) -> tuple[command_line.Completed, pathlib.Path]:
    """Runs the command of a recipe in `folder`; returns how it ended, and its output."""
    page, _, number = recipe.command.partition(" ")
    if number:
        arguments = [each.replace("gs://", "") for each in commands(page)[int(number)]]
    else:
        arguments = ["convert", "--config", page, "--input", "in", "--output", "shards"]
    if recipe.file:
        (folder / recipe.file).write_text(docs_pages.blocks(f"recipes/{page}.md", "yaml")[0])
    settings = [word for each in recipe.settings for word in ("--set", each)]
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


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def describe(value: Any, files: Mapping[bytes, str], folder: pathlib.Path) -> Any:
    """Returns a value as the golden file shows it: an image is a file of the input, or has a digest of its pixels."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if not isinstance(value, bytes):
        return value
    if value in files:
        return files[value]
    value = value.replace(os.fsencode(folder), b"TMP")  # before its length decides how it is shown
    try:
        picture = Image.open(io.BytesIO(value))
        kind, content = f"{picture.format} of {picture.width} x {picture.height}, {picture.mode}", picture.tobytes()
    except PIL.UnidentifiedImageError:
        if len(value) < 100 and value.isascii():
            return value.decode()
        kind, content = f"{len(value)} bytes", value
    return f"{kind}, {hashlib.sha256(content).hexdigest()[:8]}"


def summary(recipe: Recipe, folder: pathlib.Path, output: pathlib.Path) -> dict[str, Any]:
    """Returns what the golden file holds of a recipe."""
    files = {path.read_bytes(): f"<{path.relative_to(folder)}>" for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {data: f"<{name}>" for data, name in recipe_sets.PACKED.items()} | files
    splits = {}
    for split, examples in read(output, recipe.key).items():
        lines = sorted(
            json.dumps({name: [describe(e, files, folder) for e in each] for name, each in sorted(values.items())})
            for values in examples.values()
        )
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
        first = ["; ".join(f"{k}={str(v)[1:-1]}" for k, v in json.loads(line).items()) for line in lines[:SHOWN]]
        splits[split] = {"examples": len(lines), "digest": digest, "first": first}
    return splits


@pytest.mark.parametrize("name", CASES)
def test_records_are_golden(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    recipe = CASES[name]
    recipe.write(tmp_path)
    done, output = run(recipe, tmp_path)
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    golden_texts.check(golden_texts.RECIPES, name, {"notes": notes} | summary(recipe, tmp_path, output))
    assert datasets.rejects(output) == {}
    command_line.succeed("verify", output, "--decode")
    if name in RECIPES:
        before = datasets.shard_digests(output)
        done, _ = run(recipe, tmp_path)  # the same command again
        assert (done.returncode, datasets.shard_digests(output)) == (0, before)
    if name in RUN_PAGE:
        monkeypatch.chdir(tmp_path)
        run_code_of_the_page(name)
    if name in READ_BY_IMAGEBEAM:
        compare_with_the_reader(name, output)
    if name in READ_BY_TFDS:
        compare_with_tensorflow_datasets(name, tmp_path, output)


def test_pages_and_table_are_whole() -> None:
    pages = [page.stem for page in PAGES.glob("*.md") if page.stem not in RUN_ELSEWHERE]
    shown = {f"{page} {number}" for page in pages for number in range(len(commands(page)))}
    assert shown <= {recipe.command for recipe in RECIPES.values()} | COMMANDS_RUN_ELSEWHERE
    assert {name.partition("-")[0] for name in RECIPES} == set(config_lib.preset_names())
    assert json.loads(golden_texts.RECIPES.read_text()).keys() == CASES.keys()
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (PAGES / target).exists(), f"{page.name} links to {target}"
    index = (PAGES / "README.md").read_text()
    assert all(f"`{name}`" in index for name in config_lib.preset_names())


def test_order_of_the_source_is_kept_and_read_over_a_network(tmp_path: pathlib.Path) -> None:
    recipe = RECIPES["segmentation"]
    recipe.write(tmp_path)
    plain = ("--set", "output.shuffle=none", "--set", "output.num_shards=1")
    _, output = run(recipe, tmp_path, *plain)
    assert [*read(output, "image/key")["train"]] == [f"images/training/{n}.jpg".encode() for n in range(7)]
    over_fsspec = ("--input", f"local://{tmp_path}/ADEChallengeData2016", "--output", "remote")
    done, _ = run(recipe, tmp_path, *plain, *over_fsspec, "--set", "source.bytes_ahead=3000")
    assert done.returncode == 0, done.stderr
    assert datasets.shard_digests(tmp_path / "remote") == datasets.shard_digests(output)


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
    more = ("--input", "listing.jsonl", "--output", "listed", "--set", "source.by=listing", "--workers", "1")
    command_line.succeed("convert", *arguments, *more)
    assert datasets.shard_digests(tmp_path / "listed") == datasets.shard_digests(output)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gcs.Emulator]:
    with gcs.run(tmp_path_factory.mktemp("gcs")) as running:
        yield running


@pytest.mark.integration
@case_tables.each_case("name", ["flowers", "imagefolder_metadata", "parquet", "webdataset", "coco"])
def test_bucket_gives_the_shards_of_the_folder(tmp_path: pathlib.Path, emulator: gcs.Emulator, name: str) -> None:
    recipe = RECIPES[name]
    recipe.write(tmp_path)
    (folder,) = tmp_path.iterdir()
    done, output = run(recipe, tmp_path)
    assert done.returncode == 0, done.stderr
    page, _, number = recipe.command.partition(" ")
    arguments = commands(page)[int(number)]
    source = arguments[arguments.index("--input") + 1].removeprefix("gs://").removeprefix(folder.name)
    more = ("--input", f"gs://{folder.name}{source}", "--output", tmp_path / "from-bucket", "--workers", "1")
    bucket = emulator.bucket(folder.name)
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.blob(str(path.relative_to(folder))).upload_from_filename(str(path))
    command_line.run(*arguments, *more, environment=emulator.environment, exit_code=0)
    assert datasets.shard_digests(tmp_path / "from-bucket") == datasets.shard_digests(output)


# --- readers of the records ------------------------------------------------------------------------------------------

RUN_PAGE = (  # recipes whose page has code that reads the records
    *("cats_dogs", "image_folder", "flowers", "imagefolder_metadata", "imagenet", "captions", "captions-rows"),
    *("multilabel", "multilabel-columns", "regression-columns", "mnist", "parquet", "webdataset", "tfrecord", "coco"),
    *("segmentation", "segmentation-voc", "image_lists"),
)


def run_code_of_the_page(name: str) -> None:
    """Runs what the page shows, in the folder of its command."""
    names: dict[str, Any] = {"__name__": "__snippet__"}
    for code in docs_pages.blocks(f"recipes/{RECIPES[name].command.partition(' ')[0]}.md", "python"):
        if "matplotlib" not in code:
            if "tensorflow_datasets" in code:
                pytest.importorskip("tensorflow_datasets")
            exec(compile(code, f"{name}.md", "exec"), names)
            for feed in {"train", "examples", "batches"} & names.keys():
                first = next(iter(names[feed]))
                values = [np.asarray(each) for each in (first.values() if isinstance(first, dict) else first)]
                assert all(each.astype(float).std() > 0 for each in values if each.ndim > 2)  # pictures, not paper
            if name == "flowers" and "history" in names:
                assert np.isfinite([*names["history"].history["loss"], *names["history"].history["val_loss"]]).all()


def test_code_of_a_page_gives_the_labels_of_the_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


READ_BY_TFDS = (
    *("imagefolder", "faces_age-names", "multilabel", "coco-masks", "tfrecord", "cifar10", "coco_keypoints"),
    *("image_lists", "parquet-lists", "regression-columns"),
)
READ_BY_IMAGEBEAM = ("webdataset", "mnist", "cifar10-binary", "coco", "multilabel")


def compare_with_tensorflow_datasets(name: str, folder: pathlib.Path, output: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    recipe = RECIPES[name]
    builder = tfds.builder_from_directory(str(output))
    ours = read(output, recipe.key)
    decoders = None if name == "faces_age-names" else {"image/encoded": tfds.decode.SkipDecoding()}
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
            if name == "mnist":
                picture = np.frombuffer(each["image_raw"][0], np.uint8).reshape(28, 28, 1)
            else:
                picture = pixels(each["image/encoded"][0])
            stored[np.broadcast_to(picture, (*picture.shape[:2], 3)).tobytes()] = each
        for index in range(len(source)):
            each = source[index]
            same = stored.pop(np.ascontiguousarray(each["image"]).tobytes())
            if name in ("webdataset", "mnist", "cifar10-binary"):
                assert each["label"] == same["label" if name == "mnist" else "image/class/label"][0]
        assert not stored
