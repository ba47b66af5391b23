"""The buckets on the page: the figures of inspect --buckets, of the images that a dataset has."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import snapshots, storage
from imagebeam.pipelines import inspect_dataset
from imagebeam.reader import bucket_counts
from imagebeam.transforms.html_report import bucket_chart, sample_records
from tests import case_tables, command_line, datasets, delayed_storage, image_sets, snapshot_sets, written_files

SIDES = [(96, 64)] * 9 + [(70, 70)] * 7 + [(66, 100)] * 5 + [(200, 65)]  # height and width


def chart_of(sides: Any, num_images: int | None = None) -> bucket_chart.BucketChart | None:
    given = bucket_counts.image_sizes(np.array(sides, np.uint16).reshape(-1, 2))
    return bucket_chart.make_chart("train", len(sides) if num_images is None else num_images, given)


def chart_in(folder: pathlib.Path) -> bucket_chart.BucketChart | None:
    catalog = catalog_lib.load_catalog(folder)
    files = sample_records.ShardFiles(lambda name: [storage.join_relative(str(folder), name)])
    return bucket_chart.read_chart(catalog, files, snapshots.load_removed(str(folder), catalog))


def make_images(folder: pathlib.Path, sides: Any = SIDES) -> pathlib.Path:
    for index, (height, width) in enumerate(sides):
        written_files.write(folder, {f"cat/{index:03d}.png": image_sets.make_image(index, "PNG", size=(width, height))})
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("chart")
    datasets.make(make_images(root / "images"), root / "out", output={"num_shards": 3})
    return root / "out"


def test_page_of_the_commit_has_the_proposal_of_inspect(written: pathlib.Path) -> None:
    page = (written / "report.html").read_text()
    [shown] = re.findall(r"imagebeam inspect DIR (--buckets [^<]*)</code>", page)
    asked = json.loads(command_line.succeed("inspect", written, "--json", *shown.split()).stdout)["proposal"]
    found = chart_in(written)
    assert found is not None and (found.side, found.step, found.batch_size) == (64, 4, 1)
    names = ("height", "width", "images", "cropped", "enlarged")
    expected = [tuple(each[name] for name in names) for each in asked["buckets"]]
    rows = [
        (*map(int, size.split(" x ")), images, round(cropped, 6), more) for size, images, cropped, more in found.rows
    ]
    assert rows == expected and len(rows) > 1
    assert round(found.counts.cropped_part_of_all(), 6) == asked["cropped"]
    table = page.split("Aspect-ratio buckets")[1].split("<table")[1].split("</table>")[0]
    cells = [
        re.findall(r"[\d.]+(?: x \d+)?", re.sub(r"<svg.*?</svg>|<[^>]*>", " ", line)) for line in table.split("</tr>")
    ]
    assert [each[:2] for each in cells[1:-1]] == [[f"{row[0]} x {row[1]}", f"{row[2]}"] for row in expected]
    assert page.count("<title>") == 1 + len(found.bars)
    inspect_dataset.write_report(written, written.parent / "again.html")
    assert (written.parent / "again.html").read_text() == page


def test_bars_stand_over_their_ratios_and_count_all_images() -> None:
    found = chart_of([(100, 100)] * 4 + [(100, 200)] * 2 + [(400, 100), (60_000, 64), (64, 60_000)])
    assert found is not None
    middles = {bar.left + 1: (bar.height, bar.title) for bar in found.bars}
    assert sorted(middles) == [1, 11, 55, 77, 109]  # beyond 1:4, 1:4, 1:1, 2:1, beyond 4:1
    assert middles[55] == (100, "0.97 to 1.03: 4") and middles[77][0] == 50 and middles[1][0] == 25
    assert sum(int(title.rpartition(": ")[2]) for _, title in middles.values()) == 9
    assert middles[1][1].startswith("0 to 0.19: ") and middles[109][1] == "5.31 to more: 1"
    by_size = dict(zip(found.counts.sizes, found.marks, strict=True))
    assert by_size[64, 64] == 55 and all(0 <= place <= bucket_chart.WIDTH for place in found.marks)


@case_tables.each_case(
    "sides, side",
    {
        "all large": ([(1024, 1024), (1024, 2000)], 1024),
        "one of ten small": ([(10, 20)] + [(512, 512)] * 9, 512),
        "one of nine small": ([(10, 20)] + [(512, 512)] * 8, None),
        "area, not sides": ([(128, 512), (256, 256)], 256),
    },
)
def test_area_is_the_largest_that_nine_of_ten_images_have(sides: Any, side: int | None) -> None:
    found = chart_of(sides)
    assert (found and found.side) == side


@case_tables.each_case(
    "num_images, batch_size", {"2 percent": (101, 3), "two percent": (10_000, 200), "a batch": (20_000, 256)}
)
def test_buckets_have_a_batch_of_images(num_images: int, batch_size: int) -> None:
    rare = 1 + batch_size // 2
    found = chart_of([(640, 640)] * (num_images - rare) + [(640, 1280)] * rare)
    assert found is not None and found.batch_size == batch_size
    assert found.counts.sizes == [(512, 512)] and found.counts.images.tolist() == [num_images]


@case_tables.each_case(
    "sides",
    {
        "none": [],
        "one size": [(640, 480)] * 9,
        "unknown": [(0, 0)] * 9,
        "one known": [(640, 480), (0, 0)],
        "too small": [(63, 63), (63, 64)],
    },
)
def test_nothing_is_shown_where_it_says_nothing(sides: Any) -> None:
    assert chart_of(sides) is None


def test_images_of_unknown_size_are_no_part_of_those_counted() -> None:
    found = chart_of([(640, 480), (480, 640), (0, 0)])
    assert found is not None and (found.num_counted, found.num_images) == (2, 3)


def test_pages_without_sizes_or_with_one_size_have_no_buckets(tmp_path: pathlib.Path) -> None:
    for name, sides, output in (
        ("equal", [(96, 64)] * 4, {}),
        ("gzip", SIDES[7:], {"compression": "gzip"}),
    ):
        datasets.make(make_images(tmp_path / f"{name} images", sides), tmp_path / name, output=output)
        page = (tmp_path / name / "report.html").read_text()
        assert "Aspect-ratio" not in page and "the sizes of the images cannot" not in page


def test_damaged_sizes_are_a_note_on_a_page_without_buckets(written: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for damage in (pathlib.Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-4])):
        folder = pathlib.Path(shutil.copytree(written, tmp_path / "out", dirs_exist_ok=True))
        path = sorted((folder / "index").glob("*.sizes"))[1]
        damage(path)
        inspect_dataset.write_report(folder, tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert "the sizes of the images cannot be read (" in page and path.name in page
        assert "Aspect-ratio" not in page


def test_removed_images_are_not_counted(tmp_path: pathlib.Path) -> None:
    images, output = make_images(tmp_path / "images"), tmp_path / "out"
    sections = {"update": {"max_removed_fraction": 1.0}, "output": {"num_shards": 2}}
    snapshot_sets.update(images, output, **sections)
    for path in sorted(images.rglob("*.png"))[:9]:
        path.unlink()
    make_images(tmp_path / "more", [(64, 160)] * 2)
    for index, path in enumerate((tmp_path / "more").rglob("*.png")):
        path.rename(images / "cat" / f"new{index}.png")
    snapshot_sets.update(images, output, **sections)
    latest = snapshot_sets.latest(output)
    found = chart_in(latest)
    assert found is not None and (found.num_counted, found.num_images) == (15, 15)
    dataset = imagebeam.open_dataset(latest)
    expected = bucket_chart.make_chart("train", 15, bucket_counts.image_sizes(dataset.image_sizes("train")))
    assert expected is not None and (found.rows, found.bars) == (expected.rows, expected.bars)
    assert "15 images of <bdi>train" in (latest / "report.html").read_text()


def test_sizes_of_a_huge_dataset_are_some_dozens_of_reads(written: pathlib.Path) -> None:
    catalog, store = catalog_lib.load_catalog(written), delayed_storage.DelayedStorage()
    [first, *_] = catalog.splits["train"].shards
    shards = tuple(dataclasses.replace(first, name=f"train-{n:05d}-of-09999.tfrecord") for n in range(9999))
    catalog = dataclasses.replace(catalog, splits={"train": catalog_lib.Split(shards)})
    with delayed_storage.mounted(store) as folder:
        for each in shards:
            store.add(f"{folder}/{each.sizes_name}", (written / first.sizes_name).read_bytes())
        files = sample_records.ShardFiles(lambda name: [storage.join(folder, name)])
        found = bucket_chart.read_chart(catalog, files, None)
    assert found is not None
    assert (found.num_counted, found.num_images) == (32 * first.records, 9999 * first.records)
    assert dict(store.requests) == {"read": 32}
