"""Images that repeat others, in whole conversions."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import PIL.Image
import PIL.ImageEnhance
import pytest

from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines.messages import printed_tables
from tests import datasets
from tests.image_sets import make_image

SPLIT = {"by": "directory"}
BOTH = {"exact": "report", "near": "report"}
# By key: kind, and the key of the image that it repeats.
REPEATED = {
    "train/a/copy.jpg": ("exact", "test/a/0.jpg"),  # under another name, in another split
    "train/b/copy.jpg": ("exact", "train/a/1.jpg"),  # with another label
    "train/b/saved-again.jpg": ("near", "test/a/2.jpg"),
    "train/b/scaled.png": ("near", "test/a/2.jpg"),
    "train/b/recolored.jpg": ("near", "train/a/3.jpg"),
}


def write_images(root: pathlib.Path) -> pathlib.Path:
    """Writes ten different images, and five that repeat them."""
    for index in range(10):
        path = root / ("train" if index % 2 else "test") / ("ab"[index // 5]) / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_image(index, size=(96, 64), quality=95))
    shutil.copy(root / "test/a/0.jpg", root / "train/a/copy.jpg")
    shutil.copy(root / "train/a/1.jpg", root / "train/b/copy.jpg")
    picture = PIL.Image.open(root / "test/a/2.jpg")
    picture.save(root / "train/b/saved-again.jpg", quality=60)
    picture.resize((200, 130)).save(root / "train/b/scaled.png")
    PIL.ImageEnhance.Color(PIL.Image.open(root / "train/a/3.jpg")).enhance(0.8).save(
        root / "train/b/recolored.jpg", quality=95
    )
    return root


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def reported(images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> convert.ConvertResult:
    return datasets.make(images, tmp_path_factory.mktemp("reported") / "out", split=SPLIT, duplicates=BOTH)


def lines_of(output: str | pathlib.Path) -> dict[str, dict[str, Any]]:
    lines = (pathlib.Path(output) / "duplicates.jsonl").read_text().splitlines()
    return {line["key"]: line for line in map(json.loads, lines)}


def test_duplicates_are_listed_and_counted(images: pathlib.Path, reported: convert.ConvertResult) -> None:
    found = lines_of(reported.output)
    assert {key: (line["kind"], line["first_key"]) for key, line in found.items()} == REPEATED
    line = found["train/a/copy.jpg"]
    assert line["uri"] == str(images / "train/a/copy.jpg") and line["first_uri"] == str(images / "test/a/0.jpg")
    assert (line["split"], line["first_split"], line["distance"]) == ("train", "test", 0)
    assert all(line["distance"] <= 4 for line in found.values())
    assert reported.catalog.duplicates == {
        "exact": {"train": {"test": 1, "train": 1}},
        "near": {"train": {"test": 2, "train": 1}},
    }
    rows = dict(printed_tables.summary_rows(reported.catalog, reported.output, None))
    assert rows["exact duplicates"] == "2 images (train of test 1, within train 1); see duplicates.jsonl"
    assert rows["near duplicates"] == "3 images (train of test 2, within train 1); see duplicates.jsonl"


def test_report_changes_no_shard(images: pathlib.Path, reported: convert.ConvertResult, tmp_path: pathlib.Path) -> None:
    without = datasets.make(images, tmp_path / "out", split=SPLIT)
    assert datasets.shard_digests(pathlib.Path(without.output)) == datasets.shard_digests(pathlib.Path(reported.output))
    assert without.catalog.duplicates == {}
    assert not (tmp_path / "out/duplicates.jsonl").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_dropped_duplicates_become_dead_letters(
    images: pathlib.Path, reported: convert.ConvertResult, tmp_path: pathlib.Path, workers: int
) -> None:
    output = tmp_path / "out"
    dropped = {"exact": "drop", "near": "drop"}
    config = {"source": {"uri": images}, "split": SPLIT, "output": {"uri": output}, "duplicates": dropped}
    result = convert.convert(config, workers=workers)
    assert result.catalog.counts.rejected == {"duplicate": 5}
    assert datasets.rejects(output) == dict.fromkeys(REPEATED, "duplicate")
    assert sorted(datasets.keys(output) + datasets.keys(output, "test")) == sorted(
        f"{'train' if index % 2 else 'test'}/{'ab'[index // 5]}/{index}.jpg" for index in range(10)
    )
    details = {line["key"]: line["detail"] for line in map(json.loads, (output / "rejects.jsonl").open())}
    first = images / "test/a/0.jpg"
    assert details["train/a/copy.jpg"] == f"it has the bytes of 'test/a/0.jpg' in split test, {first}"
    assert details["train/b/scaled.png"].startswith("its perceptual hash differs in ")
    assert lines_of(output) == lines_of(reported.output)
    assert result.catalog.duplicates == reported.catalog.duplicates
    rows = dict(printed_tables.summary_rows(result.catalog, str(output), None))
    assert rows["exact duplicates"] == "2 images (train of test 1, within train 1) dropped; see duplicates.jsonl"
    assert convert.convert(config, workers=workers).state == "kept"


def test_fail_commits_nothing_until_it_is_changed(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(
        errors.TooManyRejectsError, match=r"^2 images \(train of test 1, within train 1\) repeat the"
    ) as e:
        datasets.make(images, output, split=SPLIT, duplicates={"exact": "fail"})
    left = output / ".imagebeam/duplicates.jsonl"
    assert "'train/a/copy.jpg' of train repeats 'test/a/0.jpg' of test; " in str(e.value)
    assert str(e.value).endswith(f"all of them are in {left}")
    assert len(left.read_text().splitlines()) == 2
    assert not (output / "catalog.json").exists()
    result = datasets.make(images, output, split=SPLIT, duplicates={"exact": "report"})
    assert result.message == "2 of 2 shards were finished by an earlier run"
    assert {key for key, line in lines_of(output).items()} == {"train/a/copy.jpg", "train/b/copy.jpg"}
    with pytest.raises(errors.TooManyRejectsError, match=r"repeat the bytes of others, duplicates\.exact is fail"):
        datasets.make(images, output, split=SPLIT, duplicates={"exact": "fail"})
    assert (output / "catalog.json").exists()


def test_image_that_is_rejected_replaces_no_other(tmp_path: pathlib.Path) -> None:
    for split, size in (("test", (96, 64)), ("train", (192, 128))):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a/one.png").write_bytes(make_image(1, "PNG", size=size))
        (tmp_path / split / "a/other.png").write_bytes(make_image(2 + len(split), "PNG", size=(200, 200)))
    sections = {"image": {"limits": {"min_side": 100}}, "rejects": {"max_fraction": 1}, "duplicates": {"near": "drop"}}
    result = datasets.make(tmp_path, tmp_path.with_name("out"), split=SPLIT, **sections)
    assert result.catalog.counts.rejected == {"too_small": 1}
    assert datasets.keys(tmp_path.with_name("out")).count("train/a/one.png") == 1


def test_shard_whose_hashes_are_lost_is_written_again(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(errors.TooManyRejectsError):
        datasets.make(images, output, split=SPLIT, duplicates={"exact": "fail"})
    (hashes, *_) = sorted(output.rglob("train*.hashes.json.gz"))
    hashes.write_bytes(hashes.read_bytes()[:-8])
    result = datasets.make(images, output, split=SPLIT, duplicates={"exact": "report"})
    assert result.message == "1 of 2 shards was finished by an earlier run"
    assert len(lines_of(output)) == 2


def test_plan_counts_what_would_be_dropped(images: pathlib.Path) -> None:
    config = {"source": {"uri": images}, "split": SPLIT, "duplicates": {"exact": "drop"}}
    plan = convert.plan(config)
    assert plan.rejected == {"duplicate": 2}
    assert {name: split.num_records for name, split in plan.splits.items()} == {"train": 8, "test": 5}
