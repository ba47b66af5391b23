"""Examples by index, whole and broken."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import random
import sys
import warnings
import zlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

import imagebeam
from imagebeam import errors, example
from imagebeam.pipelines import convert
from imagebeam.reader import example_source
from imagebeam.reader.example_source import ExampleSource
from tests import datasets, image_sets, pictures
from tests.unit.imagebeam.reader.feeding import LABELS, PER_LABEL, SIZE, keys_of


def test_source_holds_every_example_in_the_order_of_the_shards(directory: pathlib.Path, source: ExampleSource) -> None:
    stored = datasets.read(directory)
    assert len(source) == len(stored) == SIZE
    for index, expected in enumerate(stored):
        found = source[index]
        image = found.pop("image")
        assert (image.dtype, image.shape, image.flags.writeable) == (np.uint8, (16, 24, 3), True)
        assert (image == np.asarray(Image.open(io.BytesIO(expected.pop("image/encoded"))))).all()
        assert LABELS[found.pop("label")] == expected["image/class/text"].decode()
        assert expected.pop("image/class/label") in (1, 2)
        assert found == expected


def test_source_without_decoding_gives_the_encoded_bytes(
    directory: pathlib.Path, dataset: imagebeam.ImageDataset
) -> None:
    source = dataset.as_grain("train", decode=False)
    assert [source[index]["image"] for index in range(SIZE)] == [
        each["image/encoded"] for each in datasets.read(directory)
    ]


def test_source_takes_indexes_as_a_list_does(source: ExampleSource) -> None:
    assert source[-1]["image/key"] == source[SIZE - 1]["image/key"]
    assert source[np.int64(-SIZE)]["image/key"] == source[0]["image/key"]  # type: ignore[index]
    for index in (SIZE, -SIZE - 1):
        with pytest.raises(IndexError, match=f"index {index} is out of range for {SIZE} examples"):
            source[index]
    assert keys_of(iter(source)) == keys_of(source[index] for index in range(SIZE))  # type: ignore[call-overload]


def test_source_of_a_part_holds_that_part(dataset: imagebeam.ImageDataset, source: ExampleSource) -> None:
    part = dataset.as_grain("train[10:20]")
    assert keys_of(part[index] for index in range(len(part))) == keys_of(source[index] for index in range(10, 20))
    dogs = dataset.filter(labels=["dog"]).as_grain("train")
    assert [dogs[index]["label"] for index in range(len(dogs))] == [1] * PER_LABEL


def test_source_without_classes_gives_labels_as_they_are(
    directory: pathlib.Path, dataset: imagebeam.ImageDataset
) -> None:
    targets = dataclasses.replace(dataset.catalog, label_kind="int64")
    source = imagebeam.ImageDataset(dataset._source, targets).as_grain("train")
    assert [source[index]["label"] for index in range(SIZE)] == [
        each["image/class/label"] for each in datasets.read(directory)
    ]


def test_source_decodes_every_kind_of_png_as_tensorflow_does(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    rng = np.random.default_rng(0)
    colors = rng.integers(0, 256, (9, 7, 4), np.uint8)
    by_mode = {
        "RGB": Image.fromarray(colors[:, :, :3].copy()),
        "RGBA": Image.fromarray(colors),
        "LA": Image.fromarray(colors[:, :, :2].copy(), "LA"),
        "L": Image.fromarray(colors[:, :, 0].copy()),
        "P": Image.fromarray(colors[:, :, :3].copy()).quantize(8),
        "1": Image.fromarray(colors[:, :, 0].copy()).convert("1"),
        "I;16": Image.fromarray(rng.integers(0, 65536, (9, 7)).astype(np.uint16)),
    }
    for mode, picture in by_mode.items():
        assert picture.mode == mode
        picture.save(tmp_path / "in" / "a" / f"{mode}.png")
    datasets.make(tmp_path / "in", tmp_path / "out")
    dataset = imagebeam.open_dataset(str(tmp_path / "out"))
    source = dataset.as_grain("train")
    expected = dataset.as_tf("train", crop=None, image_size=None, shuffle=None, num_epochs=1)
    count = 0
    for index, each in enumerate(expected.as_numpy_iterator()):
        assert (source[index]["image"] == each["image"]).all(), source[index]["image/key"]
        count += 1
    assert count == len(by_mode)


def test_source_read_by_many_threads_gives_what_one_reads(source: ExampleSource) -> None:
    indexes = list(range(SIZE)) * 4
    with futures.ThreadPoolExecutor(8) as threads:
        assert keys_of(iter(threads.map(source.__getitem__, indexes))) == keys_of(map(source.__getitem__, indexes))


def test_source_of_compressed_shards_is_refused(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", ["cat"], 3)
    datasets.make(tmp_path / "in", tmp_path / "out", output={"compression": "gzip"})
    with pytest.raises(errors.ConfigError, match=r"convert with output\.compression=none"):
        imagebeam.open_dataset(str(tmp_path / "out")).as_grain("train")


def test_source_without_images_is_refused_if_they_are_to_be_decoded(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", ["cat"], 3)
    sections = {"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    convert.convert({**sections, "features": {"image/encoded": None}, "label": {"by": "none"}})
    dataset = imagebeam.open_dataset(str(tmp_path / "out"))
    with pytest.raises(errors.ConfigError, match=r"out was written without images.*give decode=False"):
        dataset.as_grain("train")
    found = dataset.as_grain("train", decode=False)[0]
    assert "image/key" in found
    assert not {"image", "label"} & set(found)


def test_source_without_pillow_names_the_extra(
    dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        errors.ConfigError, match=r"Pillow is not installed.*'imagebeam\[grain\]', or give decode=False"
    ):
        dataset.as_grain("train")
    assert dataset.as_grain("train", decode=False)[0]["image"][:2] in (b"\xff\xd8", b"\x89P")


def test_source_at_a_broken_record_names_it(broken: pathlib.Path) -> None:
    source = imagebeam.open_dataset(str(broken)).as_grain("train")
    assert source[3]["image/key"]
    with pytest.raises(
        errors.ExampleError,
        match=r"record 4 of shard .*train-00000-of-00003\.tfrecord, key '.+', byte offset \d+: the checksum",
    ):
        source[4]


def test_source_at_an_image_that_cannot_be_decoded_names_it(tmp_path: pathlib.Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    whole = image_sets.make_image(0, "PNG")
    header = whole[: whole.index(b"IDAT") - 4]
    (tmp_path / "in" / "cat").mkdir(parents=True)
    bad = header + chunk(b"IDAT", b"no zlib stream") + chunk(b"IEND", b"")  # whole in structure, with good checksums
    (tmp_path / "in" / "cat" / "bad.png").write_bytes(bad)
    convert.convert({"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}})
    source = imagebeam.open_dataset(str(tmp_path / "out")).as_grain("train")
    expected = r"record 0 of shard .*, key 'cat/bad.png', byte offset 0: the image cannot be decoded, Pillow: "
    with pytest.raises(errors.ExampleError, match=expected):
        source[0]


@dataclasses.dataclass
class StubFetcher:
    """Returns one content for every record, and names the real records in errors."""

    content: bytes
    real: Any

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes]:
        return iter([self.content] * len(wanted))

    def trouble(self, record: int, detail: str) -> Any:
        return self.real.trouble(record, detail)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "feature 'image/channels' has 0 values, expected 1"),
        (None, "not a tf.train.Example"),
        ({"image/encoded": b"<html>"}, "the image cannot be decoded, Pillow: cannot identify the image"),
    ],
    ids=["no features", "no example", "no image"],
)
def test_source_at_a_record_of_another_writer_names_it(
    dataset: imagebeam.ImageDataset, change: dict[str, Any] | None, message: str
) -> None:
    content = b"\xff\xff\xff"
    if change is not None:
        wanted = dataset.catalog.features if change else ()
        values = {**datasets.read(pathlib.Path(dataset.directory))[0], **change}
        content = b"".join(example.ExampleEncoder(wanted).encode(values, values["image/encoded"]))
    stub = StubFetcher(content, dataset.as_grain("train")._fetcher)
    source = ExampleSource(dataset.select("train"), stub, dataset.catalog)  # type: ignore[arg-type]
    with pytest.raises(errors.ExampleError, match=rf"record 2 of shard .*, key '.+', byte offset \d+: {message}"):
        source[2]


def _decode_with_pillow(encoded: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(encoded)) as picture:
        return np.asarray(picture.convert("RGB"))


JPEG_KINDS: list[tuple[str, dict[str, Any]]] = [
    ("RGB", {"subsampling": 0}),
    ("RGB", {"subsampling": 1}),
    ("RGB", {"subsampling": 2}),
    ("RGB", {"quality": 30, "optimize": True, "restart_marker_blocks": 3}),
    ("RGB", {"progressive": True}),
    ("RGB", {"keep_rgb": True}),
    ("L", {}),
    ("L", {"progressive": True}),
    ("CMYK", {}),
]


@pytest.mark.parametrize(("mode", "options"), JPEG_KINDS)
@pytest.mark.parametrize("size", [(70, 50), (1, 1), (33, 17), (640, 401)])
def test_jpeg_has_the_pixels_of_pillow(size: tuple[int, int], mode: str, options: dict[str, Any]) -> None:
    encoded = pictures.encode(pictures.photo(*size).convert(mode), **options)
    found = example_source._decode_image(encoded)
    assert found.flags.writeable and (found == _decode_with_pillow(encoded)).all()
    if example_source._native is not None:
        assert (example_source._native.decode_whole(encoded, 1 << 30) is None) == (mode == "CMYK")
        assert example_source._native.decode_whole(encoded, size[0] * size[1] - 1) is None


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=200, deadline=None)
def test_broken_jpeg_is_decoded_or_refused_as_by_pillow(seed: int) -> None:
    rng = random.Random(seed)
    mode, options = rng.choice(JPEG_KINDS)
    broken = pictures.damage(pictures.encode(pictures.photo(70, 50).convert(mode), **options), rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 1 << 20)
        outcomes = []
        for native in (example_source._native, None):
            patch.setattr(example_source, "_native", native)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    outcomes.append(example_source._decode_image(broken).tobytes())
                except ValueError as e:
                    outcomes.append(str(e))
    assert outcomes[0] == outcomes[1]


def test_jpeg_is_decoded_by_many_threads_at_once() -> None:
    encoded = [pictures.encode(pictures.photo(90 + 10 * index, 60)) for index in range(6)]
    expected = [_decode_with_pillow(each) for each in encoded] * 5
    with futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(example_source._decode_image, encoded * 5))
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))
