"""TFRecord files are rewritten: every feature of the records is kept, or named as left out."""

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
from tests import datasets, image_sets

tf = pytest.importorskip("tensorflow")

Features = dict[str, list[Any]]

OWN = {"image/key", "image/format", "image/height", "image/width", "image/channels", "image/colorspace"}
LEFT_OUT = "features of the records that are left out, which neither columns nor source.tfrecord.keep names: "
ANEW = "features of the records that are replaced by new values: "


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


OTHERS = set(make_features(0)) - {"image/encoded", "image/class/label"}
KINDS = {"image/object/bbox/xmin": "float", "image/object/mask": "bytes", "weight": "float"}  # where there is no value


def serialize(features: Features) -> bytes:
    message = tf.train.Example()
    for key, values in features.items():
        kind = {bytes: "bytes", int: "int64", float: "float"}[type(values[0])] if values else KINDS.get(key, "int64")
        value_list = getattr(message.features.feature[key], f"{kind}_list")
        value_list.SetInParent()
        value_list.value.extend(values)
    return message.SerializeToString()


def write(folder: pathlib.Path, every: list[Features], compression: str = "") -> pathlib.Path:
    """Writes records into two files with TensorFlow."""
    folder.mkdir()
    for shard in range(2):
        name = f"train-{shard:05d}-of-00002" + (".gz" if compression else "")
        with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
            for features in every[shard::2]:
                writer.write(serialize(features))
    return folder


def parse(record: bytes) -> Features:
    """Parses a record with TensorFlow's own class."""
    features = tf.train.Example.FromString(record).features.feature
    return {key: list(getattr(each, each.WhichOneof("kind")).value) for key, each in features.items()}


def read(folder: pathlib.Path) -> list[Features]:
    return [
        parse(record.numpy())
        for path in sorted(folder.glob("train-*"))
        for record in tf.data.TFRecordDataset(str(path))
    ]


def preset(source: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    addresses = [f"source.uri={source}", f"output.uri={output}"]
    return convert.convert(config_lib.load_config("tfrecord", [*overrides, *addresses]), workers=1)


def by_image(examples: list[Features], without: set[str] = OWN) -> dict[bytes, Features]:
    kept = [{key: values for key, values in each.items() if key not in without} for each in examples]
    assert len({each["image/encoded"][0] for each in kept}) == len(kept)
    return {each["image/encoded"][0]: each for each in kept}


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_every_feature_is_kept_with_its_values(tmp_path: pathlib.Path, compression: str) -> None:
    every = [make_features(seed) for seed in range(24)]
    result = preset(write(tmp_path / "in", every, compression), tmp_path / "out", "output.num_shards=5")
    assert result.catalog.counts.written == 24
    assert by_image(read(tmp_path / "out")) == by_image(every)
    found = {each.key: (each.kind, each.many) for each in result.catalog.features if each.key not in OWN}
    assert found == {
        "image/encoded": ("bytes", False),
        "image/class/label": ("int64", False),
        "image/class/text": ("bytes", False),
        "image/filename": ("bytes", False),
        "image/object/bbox/xmin": ("float", True),
        "image/object/class/label": ("int64", True),
        "image/object/mask": ("bytes", True),
        "weight": ("float", False),
        "id": ("int64", False),
    }
    assert result.plan.notes == ()


def test_rewritten_twice_is_the_same_to_the_byte(tmp_path: pathlib.Path) -> None:
    preset(write(tmp_path / "in", [make_features(seed) for seed in range(9)]), tmp_path / "one")
    again = "source.tfrecord.key=image/key"
    preset(tmp_path / "one", tmp_path / "two", again)
    preset(tmp_path / "two", tmp_path / "three", again)
    assert datasets.shard_digests(tmp_path / "one") == datasets.shard_digests(tmp_path / "two")
    assert datasets.shard_digests(tmp_path / "two") == datasets.shard_digests(tmp_path / "three")


PLACES = "image/object/bbox/xmin, image/object/class/label, image/object/mask"


@pytest.mark.parametrize(
    ("overrides", "kept", "note"),
    [
        (
            ["source.tfrecord.keep=[weight, id]"],
            {"weight", "id"},
            f"{LEFT_OUT}image/class/text, image/filename, {PLACES}",
        ),
        (
            ["source.tfrecord.keep=[]"],
            set(),
            f"{LEFT_OUT}id, image/class/text, image/filename, {PLACES}, weight",
        ),
        (
            ["columns={weight: {type: float}}"],
            {"weight"},
            f"{LEFT_OUT}id, image/class/text, image/filename, {PLACES}",
        ),
        (
            ["columns={weight: {type: float}}", "source.tfrecord.keep=[id]"],
            {"weight", "id"},
            f"{LEFT_OUT}image/class/text, image/filename, {PLACES}",
        ),
        (["columns={weight: {type: float}}", "source.tfrecord.keep=all"], OTHERS, None),
        (
            ["features={image/filename: null, columns/weight: w, columns/image/object/mask: null}"],
            (OTHERS | {"w"}) - {"weight", "image/object/mask"},
            None,
        ),
        (["source.tfrecord.key=image/filename"], OTHERS, None),
        (["features={}"], OTHERS - {"image/filename"}, f"{ANEW}image/filename"),
        (["label={by: none}"], OTHERS | {"image/class/label"}, None),
        (["label={by: column, column: image/class/text}"], OTHERS, f"{ANEW}image/class/label"),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, list) else "",
)
def test_what_is_left_out_is_named(
    tmp_path: pathlib.Path, overrides: list[str], kept: set[str], note: str | None
) -> None:
    every = [make_features(seed) for seed in range(6)]
    result = preset(write(tmp_path / "in", every), tmp_path / "out", *overrides)
    assert result.plan.notes == (() if note is None else (note,))
    stored = {feature.key for feature in result.catalog.features}
    assert stored - {"image/encoded", "image/class/label", "image/filename"} - OWN == kept - {
        "image/class/label",
        "image/filename",
    }
    expected = by_image(every)
    for each in read(tmp_path / "out"):
        assert set(each) == stored
        same = expected[each["image/encoded"][0]]
        for key in kept:
            assert each[key] == same["weight" if key == "w" else key]


def test_keys_of_the_records_that_are_replaced_are_named(tmp_path: pathlib.Path) -> None:
    every = [make_features(seed) | {"image/key": [f"key {seed}".encode()]} for seed in range(4)]
    source = write(tmp_path / "in", every)
    result = preset(source, tmp_path / "out")
    assert result.plan.notes == (
        f"{ANEW}image/key",
        "source.tfrecord.key: image/key would keep the keys of the records, and the order by them",
    )
    result = preset(source, tmp_path / "kept", "source.tfrecord.key=image/key")
    assert result.plan.notes == ()
    without = OWN - {"image/key"}
    assert by_image(read(tmp_path / "kept"), without) == by_image(every, without)


def test_feature_that_some_records_lack_is_a_list(tmp_path: pathlib.Path) -> None:
    every = [make_features(seed) for seed in range(6)]
    del every[4]["weight"]
    result = preset(write(tmp_path / "in", every), tmp_path / "out")
    assert result.plan.notes == ("features that some records lack, and are kept as lists: weight (in 5 of 6 records)",)
    every[4]["weight"] = []
    assert by_image(read(tmp_path / "out")) == by_image(every)


def test_feature_of_two_kinds_is_refused_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    every = [make_features(seed) for seed in range(6)]
    every[3]["weight"] = [3]
    source = write(tmp_path / "in", every)
    expected = (
        "feature 'weight' holds float in record 0 of train-00000-of-00002 and int64 in record 1 of "
        "train-00001-of-00002, and a feature has one kind"
    )
    with pytest.raises(errors.ConfigError, match=expected):
        preset(source, tmp_path / "out")
    assert not list(tmp_path.glob("out/train-*"))
    dropped = "features={image/filename: null, columns/weight: null}"
    assert preset(source, tmp_path / "out", dropped).catalog.counts.written == 6


def test_rejected_records_do_not_decide_on_kinds(tmp_path: pathlib.Path) -> None:
    every = [make_features(seed) for seed in range(6)]
    every.append({"weight": [b"text"], "only here": [1]})
    result = preset(write(tmp_path / "in", every), tmp_path / "out", "rejects.max_fraction=0.5")
    assert result.catalog.counts.rejected == {"bad_row": 1}
    assert by_image(read(tmp_path / "out")) == by_image(every[:-1])


@pytest.mark.parametrize("has_boxes", [True, False])
def test_image_with_places_in_it_is_not_turned(tmp_path: pathlib.Path, has_boxes: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    features: Features = {"image/encoded": [image_sets.make_image(1, exif=exif)], "image/class/label": [1]}
    if has_boxes:
        features["image/object/bbox/xmin"] = [0.25]
    preset(write(tmp_path / "in", [features]), tmp_path / "out", "image.encode=png")
    [stored] = read(tmp_path / "out")
    with Image.open(io.BytesIO(stored["image/encoded"][0])) as picture:
        assert picture.size == ((24, 16) if has_boxes else (16, 24))


def test_keep_is_of_tfrecord_files() -> None:
    with pytest.raises(errors.ConfigError, match=r"source\.tfrecord needs source\.by: tfrecord"):
        config_lib.load_config(None, ["source.tfrecord.keep=all"])
    with pytest.raises(errors.ConfigError, match="features names 'columns/weight', which is none of"):
        config_lib.load_config("tfrecord", ["features={columns/weight: w}", "source.tfrecord.keep=[]"])
