"""Heights and widths of all images: from the files beside the shards, and from the records where these tell nothing."""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import pathlib
import shutil
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import example, features, records
from imagebeam.pipelines import compact, convert, verify_dataset
from imagebeam.reader import aspect_buckets, image_sizes
from tests import case_tables, error_texts, foreign_shards, image_sets, snapshot_sets, written_files
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


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A dataset of three snapshots, with images added, changed and removed."""
    root = tmp_path_factory.mktemp("updated")
    images, output = make_images(root / "images"), root / "out"
    sections = {"source": {"include": ["**/*.img"]}, **CONFIG, "update": {"max_removed_fraction": 1.0}}
    for step in range(3):
        snapshot_sets.update(images, output, **sections)
        make_images(images, seed=100 + step, count=4)
        sorted(images.rglob("*.img"))[step].unlink()
        sorted(images.rglob("*.img"))[5 + step].write_bytes(image_sets.make_image(step, size=(50 + step, 9)))
    yield output


def assert_sizes(folder: pathlib.Path, address: str = "") -> None:
    """Checks the sizes of a snapshot, of records that are not removed, with and without the files."""
    dataset = imagebeam.open_dataset(address or folder)
    numbers = np.concatenate([dataset._removed_records("train"), [0] * 0])
    expected, found = sides_in(folder, ("train",)), dataset._read_sizes(("train",)).tolist()
    assert found == expected
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None))
    made = imagebeam.open_dataset(address or folder)._read_sizes(("train",)).tolist()
    assert made == [[0, 0] if index in set(numbers.tolist()) else each for index, each in enumerate(expected)]


@pytest.mark.parametrize("scheme", ["", "far://"])
def test_snapshots_have_the_sizes_of_their_shards(
    updated: pathlib.Path, tmp_path: pathlib.Path, scheme: str, far: object
) -> None:
    output = pathlib.Path(shutil.copytree(updated, tmp_path / "out"))
    latest = snapshot_sets.latest(output)
    assert any(shard.is_elsewhere for shard in catalog_lib.load_catalog(latest).splits["train"].shards)
    assert imagebeam.open_dataset(latest)._removed_records("train").size
    assert verify_dataset.verify(output).problems == ()
    for snapshot in sorted((output / "snapshots").iterdir()):
        assert_sizes(snapshot, f"{scheme}{snapshot}")


@pytest.fixture(scope="module")
def compacted(updated: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same dataset with its fourth snapshot, which is compacted."""
    output = pathlib.Path(shutil.copytree(updated, tmp_path_factory.mktemp("compacted") / "out"))
    compact.compact(output, workers=1)
    return output


def test_compacted_snapshot_has_sizes(compacted: pathlib.Path, tmp_path: pathlib.Path) -> None:
    latest = snapshot_sets.latest(pathlib.Path(shutil.copytree(compacted, tmp_path / "out")))
    shards = [shard for split in catalog_lib.load_catalog(latest).splits.values() for shard in split.shards]
    assert all(shard.sizes_crc32c is not None and not shard.is_elsewhere for shard in shards)
    assert_sizes(latest)


def unname_all(folder: pathlib.Path) -> None:
    """As a release wrote it that knew no such files; those that lie there now are of another dataset."""
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None))
    for path in folder.parent.rglob("*.sizes"):
        path.write_bytes(bytes(range(1, 5)) * (path.stat().st_size // 4))


def unname_some(folder: pathlib.Path) -> None:
    """As a snapshot that continues one of such a release."""
    change_catalog(
        folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None) if "-00001-" in shard.name else shard
    )


def tell_none(folder: pathlib.Path) -> None:
    """As of shards that were indexed without their sizes."""
    for path in folder.parent.rglob("*.sizes"):
        path.write_bytes(bytes(path.stat().st_size))
    zeros = {shard.records: records.extend_crc(0, bytes(4 * shard.records)) for shard in shards_of(folder)}
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=zeros[shard.records]))


def shards_of(folder: pathlib.Path) -> list[catalog_lib.Shard]:
    return [shard for split in catalog_lib.load_catalog(folder).splits.values() for shard in split.shards]


BUCKETS = ((16, 16), (12, 24), (24, 12), (8, 40), (40, 8))


@pytest.mark.parametrize("snapshot", ["000001", "000002", "000003", "000004"])
@case_tables.each_case(
    "change", {"as written": None, "of no file": unname_all, "of some files": unname_some, "unknown": tell_none}
)
def test_buckets_have_each_living_image_once(
    compacted: pathlib.Path, tmp_path: pathlib.Path, snapshot: str, change: Callable[[pathlib.Path], None] | None
) -> None:
    """In the bucket that fits it, whatever was removed and wherever its size comes from."""
    output = pathlib.Path(shutil.copytree(compacted, tmp_path / "out"))
    if change is not None:
        change(output / "snapshots" / snapshot)
    living = {key: each for key, each in snapshot_sets.living(compacted, snapshot).items() if each.split == "train"}
    sides = [PIL.Image.open(io.BytesIO(each.data)).size[::-1] for each in living.values()]
    best = aspect_buckets.choose(np.array(sides), BUCKETS, None)
    expected = {(key, BUCKETS[bucket]): 2 for key, bucket in zip(living, best.tolist(), strict=True)}
    dataset = imagebeam.open_dataset(output, snapshot=snapshot)
    found: collections.Counter[tuple[str, Any]] = collections.Counter()
    for index in range(2):
        process = {"process_index": index, "process_count": 2, "features": ("image/key",)}
        for batch in dataset.as_numpy("train", 2, buckets=BUCKETS, num_epochs=2, pad=True, **process):
            found.update((key.decode(), batch["image"].shape[1:3]) for key in batch["image/key"][batch["mask"]])
    assert found == expected and len({size for _, size in found}) > 2


@case_tables.each_case(
    "code, damage",
    {
        "missing": ("sizes-unreadable", pathlib.Path.unlink),
        "cut": ("sizes-damaged", lambda path: path.write_bytes(path.read_bytes()[:-4])),
        "of another snapshot": ("sizes-damaged", lambda path: path.write_bytes(path.read_bytes()[::-1])),
    },
)
def test_buckets_of_damaged_sizes_are_refused(
    updated: pathlib.Path, tmp_path: pathlib.Path, code: str, damage: Callable[[pathlib.Path], Any]
) -> None:
    """Also of a shard of an earlier snapshot, but not if none of its records is left."""
    output = pathlib.Path(shutil.copytree(updated, tmp_path / "out"))
    latest = snapshot_sets.latest(output)
    expected = imagebeam.open_dataset(output)._read_sizes(("train",))
    shards = catalog_lib.load_catalog(latest).splits["train"].shards
    assert shards[0].is_elsewhere
    damage(latest / shards[0].sizes_name)
    dataset = imagebeam.open_dataset(output)
    with error_texts.raises(code):
        dataset.as_numpy("train", 2, buckets=BUCKETS)
    gone = shards[0].records
    change_catalog(latest, lambda each: dataclasses.replace(each, removed=gone) if each == shards[0] else each)
    catalog, source = catalog_lib.load_catalog(latest), dataset._source
    found = image_sizes.load(source, catalog, ("train",), np.arange(gone), dataset_without_records)
    np.testing.assert_array_equal(found, np.concatenate([np.zeros((gone, 2)), expected[gone:]]))


def dataset_without_records() -> Any:
    raise AssertionError("a record was read")


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
