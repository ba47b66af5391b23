"""Heights and widths of all images: from the files beside the shards, and from the records where these tell nothing."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import example, features, records
from imagebeam.pipelines import convert, verify_dataset
from tests import error_texts, foreign_shards, image_sets, written_files
from tests.unit.imagebeam.reader import written

SIDES = ("image/height", "image/width")
SPLITS = ("train", "validation")
CONFIG = {"split": {"by": "hash", "fractions": {"train": 0.7, "validation": 0.3}}, "output": {"num_shards": 3}}
IMAGES: dict[str, dict[str, Any]] = {
    "kept": {"orientation": "keep"},
    "upright": {},
    "pixels": {"encode": "raw", "shortest_side": 8},
}


def make_images(folder: pathlib.Path, seed: int = 0, count: int = 24) -> pathlib.Path:
    for index in range(seed, seed + count):
        size, more = (16 + index % 30, 40 - index % 30), {} if index % 3 else {"exif": image_sets.turned()}
        encoded = image_sets.make_image(index, "PNG" if index % 5 == 4 else "JPEG", size=size, **more)
        written_files.write(folder, {f"{'cat' if index % 2 else 'dog'}/{index:03d}.img": encoded})
    return folder


def convert_to(output: pathlib.Path, **image: Any) -> pathlib.Path:
    images = make_images(output.parent / "images")
    source = {"uri": str(images), "include": ["**/*.img"]}
    config = {**CONFIG, "source": source, "image": image, "output": {"uri": str(output), **CONFIG["output"]}}
    convert.convert(config, workers=1)
    return output


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    return {name: convert_to(tmp_path_factory.mktemp(name) / "set", **image) for name, image in IMAGES.items()}


@pytest.fixture
def folder(every: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(every["kept"], tmp_path / "set"))


def sides_in(folder: pathlib.Path, splits: tuple[str, ...]) -> list[list[int]]:
    """Height and width that each record says, removed ones too."""
    found = []
    catalog = catalog_lib.load_catalog(folder)
    for name in splits:
        for shard in catalog.splits[name].shards:
            with open(folder / shard.name, "rb") as file:
                values = (example.parse_example(each.data) for each in records.read_records(file, catalog.compression))
                found += [[each[side][0] for side in SIDES] for each in values]
    return found


def change_catalog(
    folder: pathlib.Path, change: Callable[[catalog_lib.Shard], catalog_lib.Shard], **fields: Any
) -> None:
    catalog = catalog_lib.load_catalog(folder)
    splits = {name: catalog_lib.Split(tuple(map(change, each.shards))) for name, each in catalog.splits.items()}
    (folder / "catalog.json").write_text(dataclasses.replace(catalog, splits=splits, **fields).to_json())


def forget(folder: pathlib.Path, **fields: Any) -> pathlib.Path:
    """Makes a dataset as earlier releases wrote it: without files of sizes."""
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None), **fields)
    for path in folder.rglob("*.sizes"):
        path.unlink()
    return folder


def read(address: object, splits: tuple[str, ...] = SPLITS, **options: Any) -> list[list[int]]:
    sizes = imagebeam.open_dataset(str(address), **options)._read_sizes(splits)
    assert (sizes.dtype, sizes.ndim, sizes.flags.writeable) == (np.uint16, 2, False)
    return sizes.tolist()


@pytest.fixture(params=["local", "local with cache", "remote", "remote with cache"])
def place(request: pytest.FixtureRequest, tmp_path: pathlib.Path, far: object) -> Callable[[pathlib.Path], Any]:
    """Reads the sizes of a dataset in a folder, at some address."""
    scheme = "far://" if "remote" in request.param else ""
    options = {"cache_dir": tmp_path / "cache"} if "cache" in request.param else {}
    return lambda folder, splits=SPLITS: read(f"{scheme}{folder}", splits, **options)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("splits", [("train",), ("validation", "train")])
def test_written_sizes_are_those_of_the_records(
    every: dict[str, pathlib.Path], image: str, splits: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    folder = every[image]
    assert read(folder, splits) == sides_in(folder, splits)
    assert not caplog.records
    for shard in catalog_lib.load_catalog(folder).splits["train"].shards:
        assert (folder / shard.sizes_name).stat().st_size == 4 * shard.records


@pytest.mark.parametrize("image", IMAGES)
def test_dataset_without_the_files_has_equal_sizes(
    every: dict[str, pathlib.Path], image: str, tmp_path: pathlib.Path, place: Callable[..., Any]
) -> None:
    folder = forget(pathlib.Path(shutil.copytree(every[image], tmp_path / "set")))
    assert place(folder) == place(folder) == sides_in(folder, SPLITS)


@pytest.mark.parametrize("splits", [("train",), SPLITS])
def test_sizes_are_read_at_any_place(
    folder: pathlib.Path, place: Callable[..., Any], splits: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert place(folder, splits) == place(folder, splits) == sides_in(folder, splits)
    assert not [each for each in caplog.records if "height and width" in each.message]


def test_image_tells_its_size_where_no_feature_does(folder: pathlib.Path, place: Callable[..., Any]) -> None:
    catalog = catalog_lib.load_catalog(folder)
    forget(folder, features=tuple(each for each in catalog.features if each.source not in SIDES))
    assert place(folder) == sides_in(folder, SPLITS)


@pytest.mark.parametrize("scheme", ["", "far://"])
def test_made_sizes_are_kept_in_the_cache(
    folder: pathlib.Path, tmp_path: pathlib.Path, scheme: str, far: object, caplog: pytest.LogCaptureFixture
) -> None:
    forget(folder)
    cache, expected = {"cache_dir": tmp_path / "cache"}, sides_in(folder, SPLITS)

    def notes() -> list[str]:
        found = [each.message for each in caplog.records if "height and width" in each.message]
        caplog.clear()
        return found

    assert read(f"{scheme}{folder}") == expected
    [note] = notes()
    assert note.endswith(
        "the next start takes as long: give cache_dir, or convert or index again, which writes the files"
    )
    assert read(f"{scheme}{folder}", **cache) == expected
    [note] = notes()
    assert note.startswith("height and width of 24 images, which") and note.endswith("; cache_dir keeps them")
    kept = sorted((tmp_path / "cache").glob("imagebeam-*/*.made"))
    assert len(kept) == 6
    assert (read(f"{scheme}{folder}", **cache), notes()) == (expected, [])
    kept[0].write_bytes(bytes(kept[0].stat().st_size))
    kept[1].write_bytes(b"")
    assert (read(f"{scheme}{folder}", **cache), len(notes())) == (expected, 1)
    assert (read(f"{scheme}{folder}", **cache), notes()) == (expected, [])


def test_sizes_that_no_file_tells_are_made_once_by_a_dataset(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = imagebeam.open_dataset(forget(folder))
    for buckets in (((16, 24), (24, 16)), ((16, 16), (8, 16))):
        assert dataset.num_batches("train", 2, buckets=buckets)
    assert caplog.text.count("height and width of") == 1


def test_only_images_of_unknown_size_are_looked_up(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    shard = catalog_lib.load_catalog(folder).splits["train"].shards[1]
    data = bytearray((folder / shard.sizes_name).read_bytes())
    data[4:8] = bytes(4)
    (folder / shard.sizes_name).write_bytes(data)
    crc = records.extend_crc(0, bytes(data))
    change_catalog(folder, lambda each: dataclasses.replace(each, sizes_crc32c=crc) if each == shard else each)
    assert read(folder) == sides_in(folder, SPLITS)
    assert "height and width of 1 image," in caplog.text


def test_record_that_cannot_be_read_has_no_size(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    forget(folder)
    shard = catalog_lib.load_catalog(folder).splits["train"].shards[0]
    expected = sides_in(folder, SPLITS)
    path = folder / shard.name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"image/height", b"image/weight", 1))
    assert read(folder) == [[0, 0], *expected[1:]]
    assert ", of which 1 tell none" in caplog.text
    dataset, asked = imagebeam.open_dataset(folder), {"on_error": "skip", "max_error_fraction": 1.0}
    batches = dataset.as_numpy(
        "train", 2, buckets=((16, 24), (24, 16)), num_epochs=1, pad=True, shuffle="global", **asked
    )
    assert sum(int(batch["mask"].sum()) for batch in batches) == dataset.num_examples("train") - 1


def test_record_that_the_storage_does_not_give_is_an_error(folder: pathlib.Path, far: Any, short_budget: None) -> None:
    forget(folder)
    dataset = imagebeam.open_dataset(f"far://{folder}")
    name = dataset.splits["train"].shards[0].name
    far.faults[name] = [PermissionError(13, "Permission denied")] * 9
    with error_texts.raises("example-broken"):
        dataset._read_sizes(("train",))


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        ("sizes-unreadable", lambda path: path.unlink()),
        ("sizes-damaged", lambda path: path.write_bytes(path.read_bytes()[:-4])),
        ("sizes-damaged", lambda path: path.write_bytes(b"")),
        ("sizes-damaged", lambda path: written_files.flip(path, 0)),
    ],
    ids=["missing", "cut", "empty", "changed"],
)
def test_damaged_file_is_named(folder: pathlib.Path, place: Callable[..., Any], code: str, damage: Any) -> None:
    shard = catalog_lib.load_catalog(folder).splits["train"].shards[1]
    damage(folder / shard.sizes_name)
    with error_texts.raises(code) as caught:
        place(folder, ("train",))
    assert shard.sizes_name in str(caught.value)
    [problem] = verify_dataset.verify(folder).problems
    assert problem.shard == shard.sizes_name
    assert imagebeam.open_dataset(folder).num_examples("train")  # whoever does not need it reads on


def test_sides_beyond_uint16_are_scaled_down(tmp_path: pathlib.Path) -> None:
    sides = [(30, 40), (131_070, 200), (1, 70_000), (65_535, 65_535), (65_536, 1)]
    values = [{**written.jpeg_values(0), "image/height": high, "image/width": wide} for high, wide in sides]
    dataset = written.write(tmp_path / "set", written.IMAGE, values, num_shards=1)
    expected = [[30, 40], [65_535, 100], [1, 65_535], [65_535, 65_535], [65_535, 1]]
    assert dataset._read_sizes(("train",)).tolist() == expected
    assert struct.unpack("<10H", records.encode_sizes(sides)) == (30, 40, 0, 0, 0, 0, 65_535, 65_535, 0, 0)


def test_lists_of_images_have_no_size(tmp_path: pathlib.Path) -> None:
    one = written.jpeg_values(0)
    names = (features.ENCODED, *SIDES)
    wanted = [each._replace(many=each.source in names) for each in written.IMAGE]
    values = {name: (value, value) if name in names else value for name, value in one.items()}
    dataset = written.write(tmp_path / "set", wanted, [values], num_shards=1)
    assert dataset._read_sizes(("train",)).tolist() == [[0, 0]]


def test_indexed_shards_have_sizes_but_of_broken_records(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    examples = [foreign_shards.imagenet(index) for index in range(5)]
    examples[3] |= {"image/encoded": b"no image"}
    foreign_shards.numbered(tmp_path / "train", examples, 2)
    imagebeam.index(tmp_path, workers=1, keep_broken=True)
    stored = [np.fromfile(path, "<u2").tolist() for path in sorted((tmp_path / "index").glob("*.sizes"))]
    assert stored == [[30, 40] * 3, [0, 0, 30, 40]]
    assert read(tmp_path, ("train",)) == [[30, 40]] * 5  # what the record says
    assert "height and width of 1 image," in caplog.text


def test_other_datasets_have_no_such_file(tmp_path: pathlib.Path) -> None:
    images, base = make_images(tmp_path / "images", count=4), {"source": {"uri": str(tmp_path / "images")}}
    base["source"]["include"] = ["**/*.img"]  # type: ignore[assignment]
    for name, sections in (
        ("gzip", {"output": {"compression": "gzip"}}),
        ("no image", {"features": {"image/encoded": None}}),
        ("beam", {"output": {"writer": "beam"}}),
    ):
        output = {"uri": str(tmp_path / name), "num_shards": 1, **sections.get("output", {})}
        convert.convert({**base, **sections, "output": output}, workers=1)
        text = (tmp_path / name / "catalog.json").read_text()
        assert ("sizes_crc32c" in text, list((tmp_path / name).rglob("*.sizes"))) == (False, []), name
        assert json.loads(text)["counts"]["written"] == len(list(images.rglob("*.img")))


def test_older_imagebeam_finds_what_it_knows(folder: pathlib.Path) -> None:
    fields = json.loads((folder / "catalog.json").read_text())
    assert fields["format_version"] == 1
    assert [len(each["sizes_crc32c"]) for each in fields["splits"].values()] == [3, 3]
    assert all(set(shard) == {"name", "records", "bytes", "crc32c"} for shard in fields["splits"]["train"]["shards"])
