"""Images stored in another form than their files have, and what is counted of them, read by TensorFlow alone."""

from __future__ import annotations

import collections
import io
import json
import pathlib
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from imagebeam import errors, storage
from imagebeam.pipelines import convert, make_job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.images import pillow_decoder
from tests import image_sets, pictures

HEIGHT, WIDTH = 7, 5
FACES, TRAIN = 630, 600
AGE_SPEC = {
    "img": tf.io.FixedLenFeature([HEIGHT * WIDTH], tf.int64),
    "age": tf.io.FixedLenFeature([], tf.int64),
}

Config = dict[str, Any]


def age_of(row: int) -> int:
    return row * 37 % 101


def write_faces(root: pathlib.Path, count: int) -> np.ndarray:
    """Writes PNG files and ages.csv with a row for each; returns the pixels, uint8 [count, HEIGHT, WIDTH, 3]."""
    root.mkdir(parents=True, exist_ok=True)
    faces = np.random.default_rng(5).integers(0, 256, (count, HEIGHT, WIDTH, 3)).astype(np.uint8)
    for row, face in enumerate(faces):
        PIL.Image.fromarray(face).save(root / f"face_{row:05d}.png")
    (root / "ages.csv").write_text("age\n" + "".join(f"{age_of(row)}\n" for row in range(count)))
    return faces


def run(
    source: pathlib.Path, output: pathlib.Path, preset: str | None = None, *overrides: str
) -> convert.ConvertResult:
    config = config_lib.load_config(preset, [f"source.uri={source}", f"output.uri={output}", *overrides])
    return convert.convert(config, workers=1)


def shards_of(output: pathlib.Path, split: str) -> list[str]:
    return sorted(map(str, output.glob(f"{split}-*-of-*")))


def raw_examples(output: pathlib.Path, split: str) -> list[tf.train.Example]:
    records = tf.data.TFRecordDataset(shards_of(output, split)).as_numpy_iterator()
    return [tf.train.Example.FromString(record) for record in records]


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, pathlib.Path]:
    """The pixels, and the dataset that the preset makes from them."""
    root = tmp_path_factory.mktemp("faces")
    pixels = write_faces(root / "in", FACES)
    counts = f"split.counts={{train: {TRAIN}, test: null}}"
    result = run(root / "in", root / "out", "faces_age", counts, "statistics.pixels=true")
    assert result.catalog.counts.rejected == {}
    return pixels, root / "out"


# --- faces and their ages --------------------------------------------------------------------------------------------


def test_faces_age_preset_gives_pixels_and_age_of_each_file(faces: tuple[np.ndarray, pathlib.Path]) -> None:
    pixels, output = faces
    rows_by_split = {"train": range(TRAIN), "test": range(TRAIN, FACES)}
    for split, rows in rows_by_split.items():
        spec = AGE_SPEC | {"image/filename": tf.io.FixedLenFeature([], tf.string)}
        records = tf.data.TFRecordDataset(shards_of(output, split)).batch(FACES).get_single_element()
        found = {name: values.numpy() for name, values in tf.io.parse_example(records, spec).items()}
        stored = np.array([int(name[5:10]) for name in found["image/filename"]])  # the row of each example
        assert sorted(stored) == list(rows)
        assert found["age"].tolist() == [age_of(row) for row in stored.tolist()]
        expected = np.mean(pixels[stored], axis=3).astype(np.int64)
        assert np.array_equal(found["img"].reshape(-1, HEIGHT, WIDTH), expected)


def test_faces_age_preset_trains_on_the_first_6000_rows(tmp_path: pathlib.Path) -> None:
    config = config_lib.load_config("faces_age", [f"source.uri={tmp_path}", f"output.uri={tmp_path / 'out'}"])
    assert config.split.counts == {"train": 6000, "test": None}


def test_faces_are_read_in_shuffled_batches_for_epochs_by_several_threads(
    faces: tuple[np.ndarray, pathlib.Path],
) -> None:
    pixels, output = faces
    epochs, batch = 3, 50
    dataset = tf.data.TFRecordDataset(shards_of(output, "train"), num_parallel_reads=4)
    dataset = dataset.map(lambda record: tf.io.parse_single_example(record, AGE_SPEC), num_parallel_calls=4)
    dataset = dataset.shuffle(100, seed=1).repeat(epochs).batch(batch)
    seen: collections.Counter[bytes] = collections.Counter()
    sizes = set()
    for each in dataset.as_numpy_iterator():
        sizes.add(each["img"].shape)
        assert (each["img"].dtype, each["age"].dtype) == (np.int64, np.int64)
        seen.update(img.astype(np.uint8).tobytes() + bytes([age]) for img, age in zip(each["img"], each["age"]))
    assert sizes == {(batch, HEIGHT * WIDTH)}
    means = (pixels[:TRAIN].astype(int).sum(3) // 3).astype(np.uint8)
    assert seen == {mean.tobytes() + bytes([age_of(row)]): epochs for row, mean in enumerate(means)}


def test_faces_have_the_mean_and_deviation_of_their_stored_pixels(faces: tuple[np.ndarray, pathlib.Path]) -> None:
    pixels, output = faces
    statistics = json.loads((output / "statistics.json").read_text())
    means = pixels.astype(int).sum(3) // 3
    for split, part in (("train", means[:TRAIN]), ("test", means[TRAIN:])):
        counted = statistics[split]["pixels"]
        assert counted["images"] == len(part)
        np.testing.assert_allclose(counted["mean"], [part.mean()] * 3, rtol=1e-12)
        np.testing.assert_allclose(counted["std"], [part.std()] * 3, rtol=1e-12)
        assert statistics[split]["shorter_side"] == {"4-7": len(part)}
        assert statistics[split]["aspect_ratio"] == {"0.67-0.8": len(part)}


def test_faces_whose_table_names_the_files(tmp_path: pathlib.Path) -> None:
    pixels = write_faces(tmp_path / "in", 6)
    names = [f"face_{row:05d}.png" for row in (3, 0, 5, 1)]
    lines = [f"{name},{age_of(int(name[5:10]))}\n" for name in names]
    (tmp_path / "in" / "ages.csv").write_text("file,age\n" + "".join(lines))
    overrides = ("source.manifest.image=file", "source.manifest.files=null", "split.counts={train: 3, test: null}")
    run(tmp_path / "in", tmp_path / "out", "faces_age", *overrides)
    for split, rows in (("train", {3, 0, 5}), ("test", {1})):
        found = {}
        for example in raw_examples(tmp_path / "out", split):
            features = example.features.feature
            row = int(features["image/filename"].bytes_list.value[0][5:10])
            assert features["age"].int64_list.value == [age_of(row)]
            found[row] = features["img"].int64_list.value
        assert {row: list(values) for row, values in found.items()} == {
            row: (pixels[row].astype(int).sum(2) // 3).ravel().tolist() for row in rows
        }


def test_faces_in_a_folder_of_their_own_and_ages_without_a_header_convert_as_they_lie(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "cnn_dataset"
    faces = write_faces(data / "images", 7)
    ages = (data / "images" / "ages.csv").read_text().removeprefix("age\n")
    (data / "images" / "ages.csv").unlink()
    (data / "age.csv").write_text(ages)
    run(data, tmp_path / "out", "faces_age", "split.counts={train: 5, test: null}")
    found = {
        each.features.feature["image/key"].bytes_list.value[0].decode(): (
            each.features.feature["age"].int64_list.value[0],
            list(each.features.feature["img"].int64_list.value),
        )
        for split in ("train", "test")
        for each in raw_examples(tmp_path / "out", split)
    }
    assert found == {
        f"images/face_{row:05d}.png": (age_of(row), (face.astype(int).sum(2) // 3).ravel().tolist())
        for row, face in enumerate(faces)
    }


def test_faces_and_ages_of_other_numbers_write_nothing(tmp_path: pathlib.Path) -> None:
    write_faces(tmp_path / "in", 6)
    (tmp_path / "in" / "face_00003.png").unlink()
    with pytest.raises(errors.ConfigError, match=r"ages\.csv' has 6 rows, and source\.manifest\.files .* matches 5"):
        run(tmp_path / "in", tmp_path / "out", "faces_age")
    assert not list(tmp_path.glob("out/*"))


def test_face_that_is_broken_is_a_reject_and_the_others_keep_their_ages(tmp_path: pathlib.Path) -> None:
    write_faces(tmp_path / "in", 6)
    broken = tmp_path / "in" / "face_00002.png"
    broken.write_bytes(broken.read_bytes()[:-20])
    overrides = ("split.counts={train: 4, test: null}", "rejects.max_fraction=0.5")
    run(tmp_path / "in", tmp_path / "out", "faces_age", *overrides)
    (reject,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert (reject["key"], reject["reason"]) == ("face_00002.png", "truncated")
    for split, rows in (("train", [0, 1, 3]), ("test", [4, 5])):
        ages = [each.features.feature["age"].int64_list.value[0] for each in raw_examples(tmp_path / "out", split)]
        assert sorted(ages) == sorted(map(age_of, rows))


def test_glob_of_files_that_is_none_is_refused(tmp_path: pathlib.Path) -> None:
    write_faces(tmp_path / "in", 2)
    for files, message in (
        ("faces", r"source\.manifest\.files 'faces' is not a glob; write for example 'faces/\*\.png'"),
        ("nowhere/*.png", r"source\.manifest\.files 'nowhere/\*\.png': .* cannot be read \(No such file"),
        ("ages.csv/*.png", r"source\.manifest\.files 'ages\.csv/\*\.png': .* is not a folder"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            run(tmp_path / "in", tmp_path / "out", "faces_age", f"source.manifest.files={files}")


def test_first_rows_of_a_csv_manifest_go_to_train(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    data = image_sets.make_image(1)
    names = [f"{row * 7919 % 610:04d}.jpg" for row in range(610)]  # another order than that of the names
    for name in names:
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in" / "table.csv").write_text("image\n" + "".join(f"{name}\n" for name in names))
    config: Config = {
        "source": {"by": "manifest", "uri": str(tmp_path / "in" / "table.csv")},
        "label": {"by": "none"},
        "split": {"by": "index", "counts": {"train": 600, "test": None}},
        "output": {"uri": str(tmp_path / "out")},
    }
    convert.convert(config, workers=1)
    for split, expected in (("train", names[:600]), ("test", names[600:])):
        found = [
            example.features.feature["image/filename"].bytes_list.value[0].decode()
            for example in raw_examples(tmp_path / "out", split)
        ]
        assert sorted(found) == sorted(expected)


# --- every encoding --------------------------------------------------------------------------------------------------


def write_mixture(root: pathlib.Path) -> dict[str, np.ndarray]:
    """Writes images of several formats and sizes; returns their pixels as RGB, by file name."""
    (root / "a").mkdir(parents=True)
    mixture = {"j.jpg": "JPEG", "p.png": "PNG", "g.gif": "GIF", "b.bmp": "BMP", "w.webp": "WEBP", "t.tiff": "TIFF"}
    expected = {}
    for number, (name, format) in enumerate(mixture.items()):
        pictures.photo(40 + number, 30).save(root / "a" / name, format)
        with PIL.Image.open(root / "a" / name) as picture:
            expected[name] = np.asarray(picture.convert("RGB"))
    return expected


@pytest.mark.parametrize(
    ("encoding", "writer"),
    [
        *((encoding, "stream") for encoding in ("png", "jpeg", "raw", "int64_list", "float_list")),
        *((encoding, "beam") for encoding in ("png", "int64_list")),  # bytes and a list
    ],
)
def test_images_of_any_format_are_stored_in_one(tmp_path: pathlib.Path, encoding: str, writer: str) -> None:
    expected = write_mixture(tmp_path / "in")
    overrides = [f"image.encode={encoding}", "image.color=rgb", "statistics.pixels=true", f"output.writer={writer}"]
    overrides += ["output.num_shards=2"]
    result = run(tmp_path / "in", tmp_path / "out", None, *overrides)
    assert result.catalog.counts.written == len(expected)
    stored = []
    for example in raw_examples(tmp_path / "out", "train"):
        features = example.features.feature
        name = features["image/filename"].bytes_list.value[0].decode()
        shape = [features[f"image/{side}"].int64_list.value[0] for side in ("height", "width", "channels")]
        assert shape == list(expected[name].shape)
        format = {"png": b"png", "jpeg": b"jpeg"}.get(encoding, b"raw")
        assert features["image/format"].bytes_list.value == [format]
        assert features["image/colorspace"].bytes_list.value == [b"RGB"]
        image = features["image/encoded"]
        if encoding == "int64_list":
            found = np.array(image.int64_list.value)
        elif encoding == "float_list":
            found = np.array(image.float_list.value)
        elif encoding == "raw":
            found = tf.io.decode_raw(image.bytes_list.value[0], tf.uint8).numpy()
        else:
            (data,) = image.bytes_list.value
            decode = tf.io.decode_png if encoding == "png" else tf.io.decode_jpeg
            assert decode(data).shape == shape
            found = np.asarray(PIL.Image.open(io.BytesIO(data)))
        found = found.reshape(shape)
        stored.append(found.reshape(-1, 3).astype(float))
        if encoding == "jpeg":
            assert pictures.psnr(found, expected[name]) > 25  # a palette's dots cost most
        else:
            assert np.array_equal(found, expected[name])
    pixels = np.concatenate(stored)
    counted = json.loads((tmp_path / "out" / "statistics.json").read_text())["train"]["pixels"]
    assert counted["images"] == len(expected)
    np.testing.assert_allclose(counted["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(counted["std"], pixels.std(0), rtol=1e-9)


def test_kept_images_have_the_statistics_of_what_tensorflow_decodes(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=20)
    (tmp_path / "in" / "cat" / "gray.png").write_bytes(image_sets.make_image(99, "PNG", "L", (50, 40)))
    split = ("split.by=hash", "split.fractions={train: 0.7, test: 0.3}", "output.num_shards=3")
    run(tmp_path / "in", tmp_path / "out", None, "statistics.pixels=true", *split)
    statistics = json.loads((tmp_path / "out" / "statistics.json").read_text())
    for name in ("train", "test"):
        stored, labels = [], collections.Counter()
        for example in raw_examples(tmp_path / "out", name):
            features = example.features.feature
            data = features["image/encoded"].bytes_list.value[0]
            stored.append(np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")).reshape(-1, 3).astype(float))
            labels[features["image/class/text"].bytes_list.value[0].decode()] += 1
        pixels = np.concatenate(stored)
        counted = statistics[name]
        assert counted["pixels"]["images"] == len(stored)
        np.testing.assert_allclose(counted["pixels"]["mean"], pixels.mean(0), rtol=1e-12)
        np.testing.assert_allclose(counted["pixels"]["std"], pixels.std(0), rtol=1e-9)
        assert counted["class_weights"] == {label: len(stored) / (2 * count) for label, count in sorted(labels.items())}
        assert sum(counted["shorter_side"].values()) == sum(counted["aspect_ratio"].values()) == len(stored)


def test_images_as_numbers_load_with_tfds(tmp_path: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    pixels = write_faces(tmp_path / "in", 6)
    run(tmp_path / "in", tmp_path / "out", "faces_age", "split.counts={train: 4, test: null}")
    dataset = tfds.builder_from_directory(str(tmp_path / "out")).as_dataset("train")
    found = {int(each["age"]): each["img"] for each in dataset.as_numpy_iterator()}
    assert sorted(found) == sorted(map(age_of, range(4)))
    for row in range(4):
        assert np.array_equal(found[age_of(row)], (pixels[row].astype(int).sum(2) // 3).ravel())


@pytest.mark.parametrize("overrides", [(), ("image.encode=png",)], ids=["kept", "encoded"])
def test_version_of_pillow_decides_what_shards_hold(
    tmp_path: pathlib.Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=1)
    given = [f"source.uri={tmp_path / 'in'}", f"output.uri={storage.normalize(str(tmp_path / 'out'))}", *overrides]
    config = config_lib.load_config(None, given)
    before = make_job.make_job(config).settings.identity
    monkeypatch.setattr(pillow_decoder, "pillow_version", lambda: "99.0")
    assert make_job.make_job(config).settings.identity != before
