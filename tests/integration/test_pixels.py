"""Images stored in another form than their files have, and what is counted of them, read by TensorFlow alone."""

from __future__ import annotations

import collections
import io
import json
import os
import pathlib
import subprocess

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.pipelines import convert, job, request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.images import pillow_decoder
from tests import command_line, datasets, image_sets, pictures


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


@pytest.mark.parametrize("overrides", [(), ("image.encode=png",)], ids=["kept", "encoded"])
def test_version_of_pillow_decides_what_shards_hold(
    tmp_path: pathlib.Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=1)
    given = [f"source.uri={tmp_path / 'in'}", f"output.uri={storage.normalize(str(tmp_path / 'out'))}", *overrides]
    config = config_lib.load_config(None, given)
    before = job.make_job(request.Checked(config, 1)).settings.identity
    monkeypatch.setattr(pillow_decoder, "pillow_version", lambda: "99.0")
    assert job.make_job(request.Checked(config, 1)).settings.identity != before


# --- locales ---------------------------------------------------------------------------------------------------------


LABELS = ["кот", "Hündin", "猫"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("expected é")
    image_sets.write_folder(folder / "in", LABELS, per_label=2)
    os.rename(folder / "in/кот/0.jpg", os.fsencode(folder / "in/кот") + b"/\xff.jpg")  # no UTF-8
    datasets.make(folder / "in", folder / "out")
    return folder


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}
LOCALES = {  # variables, the name of the output as it is printed
    "ascii": (ASCII, rb"aus \xe9"),
    "latin-1-output": (ASCII | {"PYTHONIOENCODING": "latin-1"}, b"aus \xe9"),
    "posix": ({"LC_ALL": "POSIX"}, "aus é".encode()),
    "utf-8": ({"LC_ALL": "C.UTF-8"}, "aus é".encode()),
}


@pytest.mark.parametrize(("environment", "shown"), LOCALES.values(), ids=LOCALES)
def test_dataset_is_the_same_in_any_locale(
    expected: pathlib.Path, tmp_path: pathlib.Path, environment: dict[str, str], shown: bytes
) -> None:
    output = tmp_path / "aus é"
    command = [*command_line.IMAGEBEAM, "convert", "--workers", "1", "--input", str(expected / "in")]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}
    words, variables = [*command, "--output", str(output)], {**inherited, **environment}
    done = subprocess.run(words, cwd=command_line.ROOT, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert datasets.shard_digests(output) == datasets.shard_digests(expected / "out")
    assert (output / "labels.txt").read_bytes() == (expected / "out" / "labels.txt").read_bytes()
    found, wanted = (catalog_lib.load_catalog(str(folder)) for folder in (output, expected / "out"))
    assert (found.fingerprint, found.labels) == (wanted.fingerprint, tuple(sorted(LABELS)))
    assert shown in done.stdout
