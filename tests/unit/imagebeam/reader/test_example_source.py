"""Examples by index, whole and broken; and read by the loaders of Grain and PyTorch."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import pickle
import random
import shutil
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
from imagebeam.reader import whole_images
from imagebeam.reader.example_source import ExampleSource
from tests import datasets, error_texts, image_sets, pictures
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


def test_source_without_decoding_gives_encoded_bytes(directory: pathlib.Path, dataset: imagebeam.ImageDataset) -> None:
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


def test_source_without_classes_gives_plain_labels(directory: pathlib.Path, dataset: imagebeam.ImageDataset) -> None:
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
    with error_texts.raises("shards-compressed"):
        imagebeam.open_dataset(str(tmp_path / "out")).as_grain("train")


def test_source_without_images_is_refused_if_they_are_to_be_decoded(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", ["cat"], 3)
    sections = {"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    convert.convert({**sections, "features": {"image/encoded": None}, "label": {"by": "none"}}, workers=1)
    dataset = imagebeam.open_dataset(str(tmp_path / "out"))
    with error_texts.raises("dataset-no-images"):
        dataset.as_grain("train")
    found = dataset.as_grain("train", decode=False)[0]
    assert "image/key" in found
    assert not {"image", "label"} & set(found)


def test_source_without_pillow_names_an_extra(dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with error_texts.raises("package-missing"):
        dataset.as_grain("train")
    assert dataset.as_grain("train", decode=False)[0]["image"][:2] in (b"\xff\xd8", b"\x89P")


def test_source_at_a_broken_record_names_it(broken: pathlib.Path) -> None:
    source = imagebeam.open_dataset(str(broken)).as_grain("train")
    assert source[3]["image/key"]
    with error_texts.raises("example-broken"):
        source[4]


def test_source_at_an_image_that_cannot_be_decoded_names_it(tmp_path: pathlib.Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    whole = image_sets.make_image(0, "PNG")
    header = whole[: whole.index(b"IDAT") - 4]
    (tmp_path / "in" / "cat").mkdir(parents=True)
    bad = header + chunk(b"IDAT", b"no zlib stream") + chunk(b"IEND", b"")  # whole in structure, with good checksums
    (tmp_path / "in" / "cat" / "bad.png").write_bytes(bad)
    sections = {"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    convert.convert(sections, workers=1)
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

    def fault(self, record: int, detail: str) -> Any:
        return self.real.fault(record, detail)


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
    found = whole_images.decode_rgb(encoded)
    assert found.flags.writeable and (found == _decode_with_pillow(encoded)).all()
    if whole_images._native is not None:
        assert (whole_images._native.decode_whole(encoded, 1 << 30) is None) == (mode == "CMYK")
        assert whole_images._native.decode_whole(encoded, size[0] * size[1] - 1) is None


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=200, deadline=None)
def test_broken_jpeg_is_decoded_or_refused_as_by_pillow(seed: int) -> None:
    rng = random.Random(seed)
    mode, options = rng.choice(JPEG_KINDS)
    broken = pictures.damage(pictures.encode(pictures.photo(70, 50).convert(mode), **options), rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 1 << 20)
        outcomes = []
        for native in (whole_images._native, None):
            patch.setattr(whole_images, "_native", native)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    outcomes.append(whole_images.decode_rgb(broken).tobytes())
                except ValueError as e:
                    outcomes.append(str(e))
    assert outcomes[0] == outcomes[1]


def test_jpeg_is_decoded_by_many_threads_at_once() -> None:
    encoded = [pictures.encode(pictures.photo(90 + 10 * index, 60)) for index in range(6)]
    expected = [_decode_with_pillow(each) for each in encoded] * 5
    with futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(whole_images.decode_rgb, encoded * 5))
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))


def test_repr_of_a_source_names_its_examples_and_not_the_folder(
    directory: pathlib.Path, dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(directory, tmp_path / "elsewhere")
    elsewhere = imagebeam.open_dataset(str(tmp_path / "elsewhere"))
    assert repr(dataset.as_grain("train")) == repr(elsewhere.as_grain("train"))
    assert repr(dataset.as_grain("train")) == (
        f"ExampleSource('out', fingerprint='{dataset.catalog.fingerprint}', split='train', examples=all, len={SIZE}, "
        "decode=True)"
    )
    different = [
        dataset.as_grain("train"),
        dataset.as_grain("train", decode=False),
        dataset.as_grain("train[:26]"),
        dataset.as_grain("train[26:]"),
        dataset.filter(labels=["cat"]).as_grain("train"),
        dataset.filter(labels=["dog"]).as_grain("train"),
    ]
    assert len({repr(each) for each in different}) == len(different)


@pytest.mark.parametrize("worker_count", [0, 2])
def test_data_loader_reads_examples_once_an_epoch(source: ExampleSource, worker_count: int, parsed_flags: None) -> None:
    import grain.python as grain

    def load(index: int) -> list[str]:
        shard = grain.ShardOptions(shard_index=index, shard_count=2)
        sampler = grain.IndexSampler(SIZE, shard_options=shard, shuffle=True, num_epochs=1, seed=3)
        return keys_of(iter(grain.DataLoader(data_source=source, sampler=sampler, worker_count=worker_count)))

    shares = [load(index) for index in range(2 if worker_count == 0 else 1)]  # worker processes take seconds to start
    assert {len(share) for share in shares} == {SIZE // 2}
    assert len({key for share in shares for key in share}) == SIZE // 2 * len(shares)


def test_grain_data_loader_goes_on_from_a_checkpoint(
    directory: pathlib.Path, source: ExampleSource, dataset: imagebeam.ImageDataset
) -> None:
    import grain.python as grain

    def load(each: ExampleSource) -> Any:
        sampler = grain.IndexSampler(SIZE, shard_options=grain.NoSharding(), shuffle=True, seed=3)
        return iter(grain.DataLoader(data_source=each, sampler=sampler, worker_count=0))

    examples = load(source)
    for _ in range(10):
        next(examples)
    state = examples.get_state()
    expected = keys_of(next(examples) for _ in range(SIZE))
    again = load(imagebeam.open_dataset(str(directory)).as_grain("train"))
    again.set_state(state)
    assert keys_of(next(again) for _ in range(SIZE)) == expected
    with pytest.raises(ValueError, match="decode=False"):  # Grain sees by the repr that it is another source
        load(dataset.as_grain("train", decode=False)).set_state(state)


def test_grain_map_dataset_shuffles_batches_and_goes_on_from_a_checkpoint(source: ExampleSource) -> None:
    import grain

    def load() -> Any:
        examples = grain.MapDataset.source(source).seed(7).shuffle().repeat()
        pairs = examples.map(lambda each: (each["image"], each["label"])).batch(8)
        return iter(pairs.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)))

    batches = load()
    image, label = next(batches)
    assert (image.shape, image.dtype, label.shape) == ((8, 16, 24, 3), np.uint8, (8,))
    state = batches.get_state()
    expected = [next(batches)[1].tolist() for _ in range(8)]
    again = load()
    again.set_state(state)
    assert [next(again)[1].tolist() for _ in range(8)] == expected


def test_source_is_what_the_data_loader_of_pytorch_asks_for(source: ExampleSource) -> None:
    worker = pickle.loads(pickle.dumps(source))  # as a worker that is spawned gets it
    permutation = np.random.default_rng(0).permutation(len(source)).tolist()  # RandomSampler asks for the length alone
    batches = [[worker[index] for index in permutation[first : first + 8]] for first in range(0, len(source), 8)]
    assert sorted(keys_of(each for batch in batches for each in batch)) == sorted(
        keys_of(map(source.__getitem__, range(SIZE)))
    )
    collated = [{type(each[name]) for batch in batches for each in batch} for name in ("image", "label", "image/key")]
    assert collated == [{np.ndarray}, {int}, {bytes}]  # default_collate stacks the first two, and lists the last
