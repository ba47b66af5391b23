"""Zip archives as the input of a conversion."""

from __future__ import annotations

import pathlib
import zipfile
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import convert, job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.formats import zip as zip_format
from imagebeam.transforms.sources import files
from tests import case_tables, datasets, error_texts, image_sets, written_files

DIRECTORIES: dict[str, Any] = {"split": {"by": "directory"}}


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of two splits and two classes."""
    names = [f"{('train', 'test')[index % 2]}/{('cat', 'dog')[index % 3 % 2]}/{index}.jpg" for index in range(12)]
    return written_files.write(tmp_path / "in", {name: image_sets.make_image(n) for n, name in enumerate(names)})


def pack(folder: pathlib.Path, archive: pathlib.Path, start: str = "") -> pathlib.Path:
    """Packs a folder; every second file is stored, the others are deflated."""
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w") as packed:
        for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
            method = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            packed.write(path, start + str(path.relative_to(folder)), method)
    return archive


def test_archive_gives_the_shards_of_its_folder(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    expected = datasets.make(images, tmp_path / "plain", **DIRECTORIES).catalog
    archive = pack(images, tmp_path / "a.zip", "data/")
    found = datasets.make(archive / "data", tmp_path / "packed", **DIRECTORIES).catalog
    assert datasets.shard_digests(tmp_path / "packed") == datasets.shard_digests(tmp_path / "plain")
    assert (found.labels, found.splits, found.features) == (expected.labels, expected.splits, expected.features)
    for split in ("train", "test"):
        pack(images / split, tmp_path / "several" / f"{split}.zip")
    sections = DIRECTORIES | {"source": {"by": "zip"}}
    datasets.make(tmp_path / "several", tmp_path / "third", **sections)
    assert datasets.shard_digests(tmp_path / "third") == datasets.shard_digests(tmp_path / "plain")


def open_with(uri: pathlib.Path, **sections: Any) -> Any:
    sections["source"] = {"uri": str(uri), **sections.get("source", {})}
    config = config_lib.parse_config({**sections, "output": {"uri": str(uri.parent / "out")}}, "test")
    return job.make_source(config)


def test_folder_named_like_an_archive_is_a_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.zip" / "x").mkdir(parents=True)
    assert isinstance(open_with(tmp_path / "a.zip"), files.FilesSource)
    assert isinstance(open_with(tmp_path / "a.zip" / "x"), files.FilesSource)
    source = open_with(tmp_path / "a.zip", source={"by": "zip"}, image={"limits": {"max_bytes": 1000}})
    assert isinstance(source, zip_format.ZipSource)
    assert (source.archive, source.max_image_bytes) == ("", 1000)


@case_tables.each_case(
    "name, sections, code",
    [
        ("gone.zip", {}, "input-unreadable"),
        ("notes.txt", {"source": {"by": "zip"}}, "input-wrong-kind"),
        ("a.zip", {"source": {"masks": {"image": r"(.*)\.jpg", "mask": r"\1.png"}}}, "zip-no-masks"),
        ("a.zip", {"split": {"by": "lists", "lists": {"train": "l.txt"}}}, "zip-no-lists"),
    ],
)
def test_what_archives_lack_is_refused(tmp_path: pathlib.Path, name: str, sections: dict[str, Any], code: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    pack(tmp_path, tmp_path / "a.zip")
    with error_texts.raises(code):
        open_with(tmp_path / name, **sections)


def test_archive_that_is_cut_short_writes_nothing(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    archive = pack(images, tmp_path / "a.zip")
    archive.write_bytes(archive.read_bytes()[:-100])
    sections = {"source": {"uri": str(archive)}, "output": {"uri": str(tmp_path / "out")}}
    with pytest.raises(errors.ConfigError, match="it was cut short, is one of several files"):
        convert.convert(sections, workers=1)
    assert not (tmp_path / "out").exists()
