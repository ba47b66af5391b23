"""TFRecord files are rewritten: every feature of the records is kept; test_recipes.py has what is named as left out."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from tests import datasets, foreign_shards, image_sets

tf = pytest.importorskip("tensorflow")

Features = dict[str, list[Any]]

OWN = {"image/key", "image/format", "image/height", "image/width", "image/channels", "image/colorspace"}
ANEW = "features of the records that are replaced by new values: "
EMPTY = {"image/object/class/label": "int64", "image/object/mask": "bytes"}


def make_features(seed: int) -> Features:
    """Returns a record of a detection set with masks: lists of no, one and several values."""
    rng = np.random.default_rng(seed)
    return {
        "image/encoded": [image_sets.make_image(seed, "PNG" if seed % 3 == 0 else "JPEG")],
        "image/class/label": [seed % 5 + 1],
        "image/class/text": [f"class {seed % 5}".encode()],
        "image/filename": [f"{seed}.JPEG".encode()],
        "image/object/bbox/xmin": rng.random(seed % 4, np.float32).tolist(),
        "image/object/class/label": rng.integers(-(2**62), 2**62, seed % 4).tolist(),
        "image/object/mask": [rng.bytes(5000) for _ in range(seed % 3)],
        "weight": [float(np.float32(seed / 7))],
        "id": [2**63 - 1 - seed],
    }


def write(folder: pathlib.Path, every: list[Features], compression: str = "") -> pathlib.Path:
    """Writes records into two files with TensorFlow."""
    folder.mkdir()
    for shard in range(2):
        name = f"train-{shard:05d}-of-00002" + (".gz" if compression else "")
        with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
            for features in every[shard::2]:
                writer.write(foreign_shards.serialize(features, EMPTY))
    return folder


def read(folder: pathlib.Path) -> list[Features]:
    found = []
    for record in tf.data.TFRecordDataset(sorted(map(str, folder.glob("train-*")))).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        found.append({key: list(getattr(each, each.WhichOneof("kind")).value) for key, each in features.items()})
    return found


def preset(source: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    addresses = [f"source.uri={source}", f"output.uri={output}"]
    return convert.convert(config_lib.load_config("tfrecord", [*overrides, *addresses]), workers=1)


def by_image(examples: list[Features], without: set[str] = OWN) -> dict[bytes, Features]:
    kept = [{key: values for key, values in each.items() if key not in without} for each in examples]
    assert len({each["image/encoded"][0] for each in kept}) == len(kept)
    return {each["image/encoded"][0]: each for each in kept}


@pytest.fixture
def every() -> list[Features]:
    return [make_features(seed) for seed in range(9)]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_every_feature_is_kept_and_rewritten_twice_to_the_same_bytes(
    tmp_path: pathlib.Path, every: list[Features], compression: str
) -> None:
    result = preset(write(tmp_path / "in", every, compression), tmp_path / "one")
    assert by_image(read(tmp_path / "one")) == by_image(every)
    found = {each.key: each.kind + "s" * each.many for each in result.catalog.features if each.key not in OWN}
    lists = {"image/object/bbox/xmin": "floats", "image/object/class/label": "int64s", "image/object/mask": "bytess"}
    texts = dict.fromkeys(("image/encoded", "image/class/text", "image/filename"), "bytes")
    assert found == {**texts, **lists, "image/class/label": "int64", "weight": "float", "id": "int64"}
    again = "source.tfrecord.key=image/key"
    preset(tmp_path / "one", tmp_path / "two", again)
    preset(tmp_path / "two", tmp_path / "three", again)
    digests = [datasets.shard_digests(tmp_path / name) for name in ("one", "two", "three")]
    assert digests[0] == digests[1] == digests[2]


def test_keys_of_the_records_that_are_replaced_are_named(tmp_path: pathlib.Path, every: list[Features]) -> None:
    for seed, features in enumerate(every):
        features["image/key"] = [f"key {seed}".encode()]
    source = write(tmp_path / "in", every)
    result = preset(source, tmp_path / "out", "features={}")
    assert result.plan.notes == (
        f"{ANEW}image/filename, image/key",
        "source.tfrecord.key: image/key would keep the keys of the records, and the order by them",
    )
    assert preset(source, tmp_path / "kept", "source.tfrecord.key=image/key").plan.notes == ()
    without = OWN - {"image/key"}
    assert by_image(read(tmp_path / "kept"), without) == by_image(every, without)


def test_feature_that_some_records_lack_is_a_list(tmp_path: pathlib.Path, every: list[Features]) -> None:
    del every[4]["weight"]
    every.append({"weight": [b"text"], "only here": [1]})  # a reject, which decides on no kind
    result = preset(write(tmp_path / "in", every), tmp_path / "out", "rejects.max_fraction=0.5")
    assert result.catalog.counts.rejected == {"bad_row": 1}
    assert result.plan.notes == ("features that some records lack, and are kept as lists: weight (in 8 of 9 records)",)
    every[4]["weight"] = []
    assert by_image(read(tmp_path / "out")) == by_image(every[:-1])


def test_feature_of_two_kinds_is_refused_before_any_write(tmp_path: pathlib.Path, every: list[Features]) -> None:
    every[3]["weight"] = [3]
    source = write(tmp_path / "in", every)
    with pytest.raises(errors.ConfigError, match=r"'weight' holds float in record 0 of .* and int64 in record 1 of "):
        preset(source, tmp_path / "out")
    assert not list(tmp_path.glob("out/train-*"))
    dropped = "features={image/filename: null, columns/weight: null}"
    assert preset(source, tmp_path / "out", dropped).catalog.counts.written == 9


@pytest.mark.parametrize("has_boxes", [True, False])
def test_image_with_places_in_it_is_not_turned(tmp_path: pathlib.Path, has_boxes: bool) -> None:
    image = image_sets.make_image(1, exif=image_sets.turned())
    features: Features = {"image/encoded": [image], "image/class/label": [1]}
    if has_boxes:
        features["image/object/bbox/xmin"] = [0.25]
    preset(write(tmp_path / "in", [features]), tmp_path / "out", "image.encode=png")
    [stored] = read(tmp_path / "out")
    with Image.open(io.BytesIO(stored["image/encoded"][0])) as picture:
        assert picture.size == ((24, 16) if has_boxes else (16, 24))


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"source\.tfrecord needs source\.by: tfrecord"):
        config_lib.load_config(None, ["source.tfrecord.keep=all"])
    with pytest.raises(errors.ConfigError, match="features names 'columns/weight', wh"):
        config_lib.load_config("tfrecord", ["features={columns/weight: w}", "source.tfrecord.keep=[]"])
