"""Depth beside colors: numbers beyond 8 bits as an extra image, from files to the batches of every reader."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pydantic
import pytest
import tensorflow as tf
import tifffile
from PIL import Image

import imagebeam
from imagebeam import errors, example, records
from imagebeam.pipelines import inspect_dataset, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from tests import datasets, docs_pages, image_sets

HEIGHT, WIDTH, COUNT = 48, 60, 4
LEVEL = 4  # levels of color from one row, or column, to the next
FILES = {"uint16": "png", "uint16 tiff": "tiff", "float32": "tiff"}


def colors_of() -> np.ndarray:
    down, right = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([down * LEVEL, right * LEVEL, np.full_like(down, 7)], 2).astype(np.uint8)


def depth_of(index: int, dtype: str, factor: int = 1) -> np.ndarray:
    """Returns numbers of which each says its row and column; no two pixels have the same."""
    down, right = np.mgrid[: HEIGHT * factor, : WIDTH * factor]
    numbers = down * 200 + right + 7 * index
    return (numbers / 3).astype(np.float32) if dtype == "float32" else numbers.astype(np.uint16)


def row_and_column(depth: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.rint(depth.astype(float) * (3 if depth.dtype == np.float32 else 1)).astype(int) - 7 * index
    return numbers // 200, numbers % 200


def write(root: pathlib.Path, kind: str, factor: int = 1) -> None:
    """Writes colors, and depth of the kind, a key of FILES, with sides of a factor."""
    for name in ("rgb", "depth"):
        (root / name).mkdir(parents=True)
    for index in range(COUNT):
        (root / f"rgb/{index}.png").write_bytes(image_sets.save(Image.fromarray(colors_of()), "PNG"))
        depth = depth_of(index, kind.partition(" ")[0], factor)
        if FILES[kind] == "png":
            (root / f"depth/{index}.png").write_bytes(image_sets.save(Image.fromarray(depth), "PNG"))
        else:
            tifffile.imwrite(root / f"depth/{index}.tiff", depth, photometric="minisblack", compression="zlib")


def sections_of(root: pathlib.Path, kind: str, **image: Any) -> dict[str, Any]:
    pairs = {"image": r"rgb/(.*)\.png", "others": {"depth": rf"depth/\1.{FILES[kind]}"}}
    given = {"extra_images": {"depth": {"dtype": kind.partition(" ")[0]}}, **image}
    source = {"by": "pairs", "uri": str(root), "pairs": pairs}
    output = {"uri": f"{root}-out"}
    return {"source": source, "label": {"by": "none"}, "split": {"by": "none"}, "image": given, "output": output}


@pytest.fixture(scope="module", params=FILES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, kind: str) -> pathlib.Path:
    root = tmp_path_factory.mktemp("depth") / "in"
    write(root, kind)
    # what is done to colors leaves depth as it is
    imagebeam.convert(sections_of(root, kind, encode="jpeg", quality=98, chroma="4:4:4", color="rgb"), workers=1)
    return pathlib.Path(f"{root}-out")


def expected(kind: str) -> dict[str, np.ndarray]:
    return {f"rgb/{index}.png": depth_of(index, kind.partition(" ")[0]) for index in range(COUNT)}


def test_records_hold_the_numbers_of_the_files(output: pathlib.Path, kind: str) -> None:
    found = {}
    for values in datasets.read(output):
        data = values["image/depth/encoded"]
        if kind == "float32":
            found[values["image/key"].decode()] = np.frombuffer(data, "<f4").reshape(HEIGHT, WIDTH)
        else:
            found[values["image/key"].decode()] = np.asarray(Image.open(io.BytesIO(data)))
        assert values["image/depth/format"] == (b"raw" if kind == "float32" else b"png")
        assert (values["image/depth/height"], values["image/depth/width"]) == (HEIGHT, WIDTH)
    assert found.keys() == expected(kind).keys()
    for key, depth in expected(kind).items():
        assert found[key].dtype == depth.dtype and np.array_equal(found[key], depth)


@pytest.mark.parametrize("decoder", ["auto", "pillow"])
def test_whole_images_are_read_back_exactly(output: pathlib.Path, kind: str, decoder: str) -> None:
    dataset = imagebeam.open_dataset(output)
    options: dict[str, Any] = {"image_size": (HEIGHT, WIDTH), "crop": "squash", "images": ["depth"], "flip": False}
    options |= {"features": ["image/key"], "shuffle": None, "num_epochs": 1}
    batches = [next(dataset.as_numpy("train", COUNT, decoder=decoder, **options))]
    batches += dataset.as_tf("train", COUNT, decoder=decoder, **options).as_numpy_iterator()
    # depth is neither normalized nor cast
    batches.append(
        next(dataset.as_numpy("train", COUNT, decoder=decoder, dtype="float32", normalize=(1, 2), **options))
    )
    for batch in batches:
        for key, depth in zip(batch["image/key"], batch["depth"], strict=True):
            wanted = expected(kind)[key.decode()]
            assert depth.dtype == wanted.dtype and np.array_equal(depth[..., 0], wanted)


@pytest.mark.parametrize("decoder", ["auto", "pillow"])
@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("options", [{"crop": "random", "flip": True}, {"crop": "resize_shorter"}, {"crop": "center"}])
def test_depth_has_the_geometry_of_the_colors(
    tmp_path: pathlib.Path, kind: str, decoder: str, factor: int, options: dict[str, Any]
) -> None:
    write(tmp_path / "in", kind, factor)
    imagebeam.convert(sections_of(tmp_path / "in", kind), workers=1)
    dataset = imagebeam.open_dataset(tmp_path / "in-out")
    given = {"image_size": (32, 40), "images": ["depth"], "features": ["image/key"], "num_epochs": 2, "shuffle": None}
    for batch in dataset.as_numpy("train", 3, decoder=decoder, **given, **options):  # the last one is padded
        for key, colors, depth in zip(batch["image/key"], batch["image"], batch["depth"], strict=True):
            if not key:
                continue
            down, right = row_and_column(depth[..., 0], int(key.decode()[4:-4]))
            assert down.min() >= 0 and right.max() < factor * WIDTH
            for axis, found in enumerate((down, right)):
                assert np.abs((found + 0.5) / factor - 0.5 - colors[..., axis].astype(float) / LEVEL).max() <= 1.5


def test_other_readers_have_the_numbers(output: pathlib.Path, kind: str) -> None:
    dataset = imagebeam.open_dataset(output)
    examples = dataset.as_grain("train", features=["image/key", "image/depth/encoded"])
    stored = {values["image/key"]: values["image/depth/encoded"] for values in datasets.read(output)}
    assert {examples[i]["image/key"]: examples[i]["image/depth/encoded"] for i in range(COUNT)} == stored
    jax = pytest.importorskip("jax")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    given: dict[str, Any] = {"image_size": (32, 40), "images": ["depth"]}
    by_jax, by_numpy = next(dataset.as_jax("train", sharding, 4, **given)), next(dataset.as_numpy("train", 4, **given))
    assert np.array_equal(by_jax["depth"], by_numpy["depth"])
    single = next(iter(dataset.as_tf("train", image_size=None, crop=None, flip=False, images=["depth"])))
    assert single["depth"].shape == (HEIGHT, WIDTH, 1) and single["depth"].dtype == kind.partition(" ")[0]
    tfds = pytest.importorskip("tensorflow_datasets")
    for values in tfds.builder_from_directory(str(output)).as_dataset("train").as_numpy_iterator():
        depth, wanted = values["image/depth/encoded"], expected(kind)[values["image/key"].decode()]
        if kind == "float32":
            depth = np.frombuffer(depth, "<f4").reshape(HEIGHT, WIDTH, 1)
        assert depth.dtype == wanted.dtype and np.array_equal(depth[..., 0], wanted)


def test_snippet_of_the_page_reads_depth(output: pathlib.Path, kind: str) -> None:
    [_, snippet] = docs_pages.blocks("recipes/pairs.md", "python")
    depth = docs_pages.run_snippet(snippet.replace('"records"', repr(str(output))))["depth"]
    assert depth.shape == (2, 64, 64, 1) and depth.dtype == kind.partition(" ")[0]


def test_commands_know_the_numbers(output: pathlib.Path, kind: str, tmp_path: pathlib.Path) -> None:
    assert verify_dataset.verify(output, decode=True).problems == ()
    catalog = imagebeam.open_dataset(output).catalog
    assert json.loads((output / "catalog.json").read_text())["format_version"] == 4
    [_, depth] = inspect_dataset.save_images(str(output), catalog, "train", 1, tmp_path)
    found = np.load(depth)[..., 0] if kind == "float32" else np.asarray(Image.open(depth))
    assert any(np.array_equal(found, each) for each in expected(kind).values())


def test_plan_recognizes_the_type_of_depth(tmp_path: pathlib.Path, kind: str) -> None:
    write(tmp_path / "in", kind)
    found = recognize_folder.recognize(str(tmp_path / "in")).sure
    assert found is not None and found.preset == "pairs"
    assert found.settings["image.extra_images"] == {"depth": {"dtype": kind.partition(" ")[0]}}
    given = [*recognize_folder.overrides_of(found), f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'out'}"]
    catalog = imagebeam.convert(config_lib.load_config("pairs", [*given, "split={by: none}"]), workers=1).catalog
    assert catalog.extra_pixels == {"depth": {"dtype": kind.partition(" ")[0], "channels": 1}}


def test_type_holds_for_the_images_of_a_table_and_scales_by_a_range(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "in", "uint16")
    (tmp_path / "in/all.csv").write_text("image,deep\n" + "".join(f"rgb/{n}.png,depth/{n}.png\n" for n in range(COUNT)))
    sections = sections_of(tmp_path / "in", "uint16")
    table = {"path": "all.csv", "image": "image", "further": {"depth": "deep"}}
    sections["source"] = {"by": "manifest", "uri": str(tmp_path / "in"), "manifest": table}
    sections["image"] = {"extra_images": {"depth": {"range": [0, 10200]}}}
    imagebeam.convert(sections, workers=1)
    dataset = imagebeam.open_dataset(tmp_path / "in-out")
    options = {"image_size": (HEIGHT, WIDTH), "crop": "squash", "images": ["depth"], "shuffle": None}
    batch = next(dataset.as_numpy("train", COUNT, features=["image/key"], **options))
    for key, depth in zip(batch["image/key"], batch["depth"], strict=True):
        numbers = depth_of(int(key.decode()[4:-4]), "uint16")
        assert depth.dtype == np.uint8 and np.array_equal(depth[..., 0], np.rint(numbers / 40).clip(0, 255))


@pytest.mark.parametrize(
    ("typed", "file", "detail"),
    [
        ({"dtype": "uint16"}, ("L",), "image.extra_images.depth.dtype is uint16: set image.extra_images.depth.range"),
        ({"dtype": "uint16", "range": [0, 255]}, ("RGB",), "3 channels, and image.extra_images.depth.channels is 1"),
        (None, ("F",), "or image.dtype: float32; for this image alone: image.extra_images"),
    ],
    ids=["8 bits", "colors", "no type"],
)
def test_file_of_other_numbers_is_rejected_with_the_key(
    tmp_path: pathlib.Path, typed: dict[str, Any] | None, file: tuple[str], detail: str
) -> None:
    write(tmp_path / "in", "float32")
    for path in (tmp_path / "in/depth").iterdir():
        path.write_bytes(image_sets.save(Image.new(file[0], (WIDTH, HEIGHT)), "TIFF"))
    sections = sections_of(tmp_path / "in", "float32")
    sections["image"] = {"extra_images": {"depth": typed}} if typed else {}
    sections["rejects"] = {"max_fraction": 1}
    with pytest.raises(errors.TooManyRejectsError):
        imagebeam.convert(sections, workers=1)
    assert detail in (tmp_path / "in-out/rejects.jsonl").read_text()


@pytest.mark.parametrize(
    ("extra_images", "text"),
    [
        ({"depth": {}}, "is for numbers beyond 8 bits"),
        ({"depth": {"dtype": "float32", "range": [0, 1]}}, "float32 stores numbers as they are"),
        ({"depth": {"dtype": "uint16", "range": [5, 1]}}, r"write \[LOWEST, HIGHEST\]"),
        (
            {"height": {"dtype": "uint16"}},
            "image.extra_images names height, and the extra images of an example are depth",
        ),
    ],
)
def test_types_that_say_nothing_are_refused(tmp_path: pathlib.Path, extra_images: dict[str, Any], text: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=text):
        config_lib.Config.model_validate(sections_of(tmp_path, "uint16", extra_images=extra_images))


def test_damaged_numbers_are_faults_of_their_example(output: pathlib.Path, kind: str) -> None:
    check = verify_dataset._DecodeRecord(imagebeam.open_dataset(output).catalog, is_raw=False)
    with next(output.glob("train-*.tfrecord")).open("rb") as file:
        record = next(iter(records.read_records(file))).data
    assert check(record) is None
    data = example.parse_example(record)["image/depth/encoded"][0]
    if kind == "float32":
        assert "numbers of float32" in str(check(_with_height(record)))
    else:
        assert "image/depth" in str(check(record.replace(data, data[:-30] + bytes(30))))


def _with_height(record: bytes) -> bytes:
    parsed = tf.train.Example.FromString(record)
    parsed.features.feature["image/depth/height"].int64_list.value[:] = [HEIGHT + 1]
    return bytes(parsed.SerializeToString())
