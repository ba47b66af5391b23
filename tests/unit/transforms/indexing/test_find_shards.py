"""TFRecord files are found by their content."""

from __future__ import annotations

import gzip
import io
import pathlib

from imagebeam import records
from imagebeam.transforms.indexing import find_shards
from tests import case_tables, error_texts, written_files


def content(count: int = 1) -> bytes:
    file = io.BytesIO()
    writer = records.RecordWriter(file)
    for _ in range(count):
        writer.write(b"abc")
    writer.finish()
    return file.getvalue()


def make(folder: pathlib.Path, *names: str, data: bytes | None = None) -> str:
    return str(written_files.write(folder, dict.fromkeys(names, content() if data is None else data)))


def test_files_of_any_name_are_found_in_the_order_of_their_numbers(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "train_10", "train_9", "deep/val/x.dat", "test", "index/train.index", ".hidden/a.tfrecord")
    make(tmp_path, "readme", "features.json", data=b"{}")
    found = find_shards.find_shards(str(tmp_path))
    names = {split: [shard.name for shard in shards] for split, shards in found.splits.items()}
    assert names == {"train": ["train_9", "train_10"], "test": ["test"], "val": ["deep/val/x.dat"]}
    assert (found.compression, found.skipped) == ("none", {"other_file": 2})


def test_gzip_is_found_by_its_content(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "train.tfrecord", "test.tfrecord.gz", data=gzip.compress(content()))
    assert find_shards.find_shards(str(tmp_path)).compression == "gzip"
    make(tmp_path, "val.tfrecord")
    with error_texts.raises("index-mixed-compression"):
        find_shards.find_shards(str(tmp_path))
    assert find_shards.find_shards(str(tmp_path), "(val)").left_out == ["test.tfrecord.gz", "train.tfrecord"]


def test_empty_files_named_like_shards_count(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "train-00000-of-00002")
    make(tmp_path, "train-00001-of-00002", "other", data=b"")
    assert [shard.name for shard in find_shards.find_shards(str(tmp_path)).shards] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]


@case_tables.each_case(
    "code, names, pattern",
    {
        "none": ("index-no-tfrecord", (), None),
        "missing": ("index-shards-missing", ("a-00000-of-00003", "a-00002-of-00003"), None),
        "two-runs": ("index-two-series", ("a-00000-of-00001", "a-00000-of-00002", "a-00001-of-00002"), None),
        "one-index": ("index-names-collide", ("a.tfrecord", "a"), None),
        "bad-pattern": ("index-split-pattern", ("ok.tfrecord",), "("),
        "no-match": ("index-no-tfrecord", ("ok.tfrecord",), "x"),
    },
)
def test_files_that_make_no_dataset_are_an_error(
    tmp_path: pathlib.Path, code: str, names: tuple[str, ...], pattern: str | None
) -> None:
    with error_texts.raises(code):
        find_shards.find_shards(make(tmp_path, *names), pattern)


def test_missing_files_can_be_allowed(tmp_path: pathlib.Path) -> None:
    assert find_shards.find_shards(make(tmp_path, "a-00002-of-00003"), is_partial=True).shards
    one = make(tmp_path / "from-1", "a-00001-of-00002", "a-00002-of-00002")  # some tools count from 1
    assert len(find_shards.find_shards(one).shards) == 2


def test_damaged_and_foreign_files_named_like_shards_are_an_error(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "ok.tfrecord")
    make(tmp_path, "bad.tfrecord", data=b"\x78\x9c" + bytes(30))
    with error_texts.raises("index-no-tfrecord"):
        find_shards.find_shards(str(tmp_path))
