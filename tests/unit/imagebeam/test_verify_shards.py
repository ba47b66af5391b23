from __future__ import annotations

import dataclasses
import io
import pathlib
import re
from collections.abc import Sequence

import google_crc32c
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import records, verify_shards
from imagebeam.catalog import Catalog, Counts, File, Shard, Split
from imagebeam.verify_shards import Problem
from tests import linked_snapshots
from tests.written_files import flip

FIRST, SECOND = "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"
FIRST_INDEX = "index/train-00000-of-00002.index"
TEST, EMPTY = "test-00000-of-00002.tfrecord", "test-00001-of-00002.tfrecord"
CONTENTS = {FIRST: [b"one", b"two", b"three"], SECOND: [b"four", b"five"], TEST: [b"six"], EMPTY: []}
OFFSETS = [0, 19, 38]  # of the records of FIRST
END = 59  # its size


def encode(contents: Sequence[bytes], compression: str = "none") -> tuple[bytes, Sequence[int]]:
    """The bytes of a shard, and the offsets of its records."""
    file = io.BytesIO()
    writer = records.RecordWriter(file, compression)
    for content in contents:
        writer.write(content)
    writer.finish()
    return file.getvalue(), writer.offsets


def write_dataset(folder: pathlib.Path, compression: str = "none") -> pathlib.Path:
    written = {}
    (folder / "index").mkdir(parents=True)
    for name, contents in CONTENTS.items():
        data, offsets = encode(contents, compression)
        written[name] = Shard(name, len(contents), len(data), google_crc32c.value(data))
        (folder / name).write_bytes(data)
        if compression == "none":
            (folder / written[name].index_name).write_bytes(records.encode_index(offsets, len(data)))
    splits = {"train": Split((written[FIRST], written[SECOND])), "test": Split((written[TEST], written[EMPTY]))}
    catalog = Catalog("numbers", "0", compression, splits, (), None, 0, (), {}, Counts(6, 6, {}, {}), {}, "")
    (folder / "catalog.json").write_text(catalog.to_json())
    return folder


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_dataset(tmp_path / "dataset")


def find_problems(folder: pathlib.Path) -> list[Problem]:
    return [problem for _, problems in verify_shards.verify_dataset(str(folder)) for problem in problems]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_good_dataset_has_no_problem_but_those_of_a_check(tmp_path: pathlib.Path, compression: str) -> None:
    folder, seen = write_dataset(tmp_path / "dataset", compression), []
    expected = [(name, []) for name in (FIRST, SECOND, TEST, EMPTY)]
    assert list(verify_shards.verify_dataset(str(folder))) == expected
    assert list(verify_shards.verify_dataset(f"file://{folder}/")) == expected

    def check(data: bytes) -> str | None:
        seen.append(data)
        return "is two" if data == b"two" else None

    complaint = [Problem(FIRST, 19, "record 1: is two")]
    assert list(verify_shards.verify_dataset(str(folder), check)) == [(FIRST, complaint), *expected[1:]]
    assert seen == [content for contents in CONTENTS.values() for content in contents]


# Shards


def test_flipped_byte_is_reported_at_its_record(dataset: pathlib.Path) -> None:
    for position in (0, 18, 19, 38, END - 1):  # test_records.py flips each
        flip(dataset / FIRST, position, 0x40)
        [problem] = find_problems(dataset)
        index = min(position // 19, 2)
        assert (problem.shard, problem.offset) == (FIRST, OFFSETS[index])
        assert problem.detail.startswith(f"record {index}: the checksum of a record")
        flip(dataset / FIRST, position, 0x40)


OTHER = encode([b"one", b"TWO", b"three"])[0]


def test_changed_shard_is_reported_where_the_change_begins(dataset: pathlib.Path) -> None:
    whole = (dataset / FIRST).read_bytes()
    crcs = [f"{google_crc32c.value(data):08x}" for data in (OTHER, whole)]
    cut_short = "the shard holds {} records, the catalog says 3: it was cut short"
    for changed, offset, detail in [
        (whole[:-1], 38, "record 2: a record of 5 bytes is cut short"),
        (whole[:40], 38, "record 2: a record's header is cut short after 2 of 12 bytes"),
        (whole[:38], 38, cut_short.format(2)),
        (b"", 0, cut_short.format(0)),
        (whole + encode([b"more"] * 3)[0], END, "an extra record; the catalog says 3 records"),
        (whole + b"more", END, "record 3: a record's header is cut short after 4 of 12 bytes"),
        (OTHER, 0, "the shard holds 59 bytes with crc32c {}, the catalog says 59 bytes with {}".format(*crcs)),
    ]:
        (dataset / FIRST).write_bytes(changed)
        assert find_problems(dataset) == [Problem(FIRST, offset, detail)]
    (dataset / FIRST).unlink()
    assert find_problems(dataset) == [Problem(FIRST, None, "the shard is missing; the catalog says 59 bytes")]


def test_file_that_cannot_be_read_is_reported(dataset: pathlib.Path) -> None:
    name_files(dataset, notes=File(8, 1))
    (dataset / FIRST).unlink()
    for each in ("notes", FIRST):
        (dataset / each).mkdir()
    found = {each.shard: each.detail for each in find_problems(dataset)}
    assert all(found[name].endswith("cannot be read (Is a directory)") for name in (FIRST, "notes"))


def test_file_among_indexes_or_states_that_the_catalog_does_not_name_is_a_problem(dataset: pathlib.Path) -> None:
    names = ["index/other.index", "index/train-00000-of-00003.index", "state/old.json.gz"]
    (dataset / "state").mkdir()
    for name in names:
        (dataset / name).write_bytes(b"")
    detail = "the catalog does not name this file; move or delete it"
    assert find_problems(dataset) == [Problem(name, None, detail) for name in names]
    (dataset / ".imagebeam").mkdir()  # a run is writing, and its commit moves indexes early
    assert find_problems(dataset) == []


def test_swapped_shards_name_each_other(dataset: pathlib.Path) -> None:
    (dataset / FIRST).rename(dataset / "first")
    (dataset / SECOND).rename(dataset / FIRST)
    (dataset / "first").rename(dataset / SECOND)
    assert find_problems(dataset) == [
        Problem(FIRST, 0, f"the shard holds the content of {SECOND}: the two were swapped"),
        Problem(SECOND, 0, f"the shard holds the content of {FIRST}: the two were swapped"),
    ]


# Indexes


def test_flipped_byte_of_an_index_is_reported(dataset: pathlib.Path) -> None:
    for position in range(8 * 4):
        flip(dataset / FIRST_INDEX, position, 0x40)
        (problem,) = find_problems(dataset)
        entry = position // 8
        if entry == 3:
            assert problem.offset is None
            assert problem.detail.startswith("the index lists 3 records in ")
        else:  # the entry is the start of one record and the end of the one before
            record = max(entry - 1, 0)
            assert problem.offset == record * 8
            assert problem.detail.startswith(f"the index says record {record} takes bytes ")
        assert problem.shard == FIRST_INDEX
        flip(dataset / FIRST_INDEX, position, 0x40)


def test_wrong_index_is_reported(dataset: pathlib.Path) -> None:
    no_whole = "the index cannot be read (an index of 33 bytes is not a whole number of 8-byte offsets)"
    says = "the index says record {} takes bytes {}, where the shard holds none such"
    of_another_shard, too_short = encode([b"three", b"one", b"two"])[1], records.encode_index([0, 19], END)
    for data, offset, detail in (
        (bytes(33), None, no_whole),
        (b"", None, no_whole.replace("33", "0")),
        (too_short, None, f"the index lists 2 records in {END} bytes, the catalog says 3 in 59"),
        (records.encode_index([0, 38, 19], END), 0, says.format(0, "0 to 38")),
        (records.encode_index([0, 19, 2**64 - 1], END), 8, says.format(1, "19 to 18,446,744,073,709,551,615")),
        (records.encode_index([0, 19, 19], END), 8, says.format(1, "19 to 19")),
        (records.encode_index(of_another_shard, END), 0, says.format(0, "0 to 21")),
    ):
        (dataset / FIRST_INDEX).write_bytes(data)
        assert find_problems(dataset) == [Problem(FIRST_INDEX, offset, detail)]
    (dataset / FIRST_INDEX).unlink()
    assert find_problems(dataset) == [Problem(FIRST_INDEX, None, "the index is missing")]


def test_index_of_the_right_form_and_another_checksum_is_reported(dataset: pathlib.Path) -> None:
    """The index fits the framing of the shard, but it is not the index that was written."""
    shard = Shard(FIRST, 3, END, google_crc32c.value((dataset / FIRST).read_bytes()))
    data = (dataset / FIRST_INDEX).read_bytes()
    right = dataclasses.replace(shard, index_crc32c=google_crc32c.value(data))
    assert verify_shards.verify_shard(str(dataset), right) == []
    wrong = dataclasses.replace(shard, index_crc32c=7)
    found = f"{google_crc32c.value(data):08x}"
    detail = f"the file has the crc32c {found}, the catalog says 00000007: its content was changed"
    assert verify_shards.verify_shard(str(dataset), wrong) == [Problem(FIRST_INDEX, None, detail)]


# Other files

NOTES = b"cat\ndog\n"


def name_files(dataset: pathlib.Path, **files: File) -> None:
    catalog = catalog_lib.load_catalog(str(dataset))
    (dataset / "catalog.json").write_text(dataclasses.replace(catalog, files=files).to_json())


def test_file_is_compared_with_its_size_and_checksum(dataset: pathlib.Path) -> None:
    right, changed = google_crc32c.value(NOTES), b"cow" + NOTES[3:]
    name_files(dataset, notes=File(len(NOTES), right))
    assert [each.detail for each in find_problems(dataset)] == ["the file is missing; the catalog says 8 bytes"]
    other = f"the file has the crc32c {google_crc32c.value(changed):08x}, the catalog says {right:08x}: its content was"
    for data, details in (
        (NOTES, []),
        (changed, [f"{other} changed"]),
        (NOTES[:5], ["the file has 5 bytes, the catalog says 8"]),
    ):
        (dataset / "notes").write_bytes(data)
        assert find_problems(dataset) == [Problem("notes", None, detail) for detail in details]


def test_file_named_like_a_shard_that_the_catalog_does_not_name_is_reported(dataset: pathlib.Path) -> None:
    named_so = ["train-00000-of-00001", "train-00000-of-00002.tfrecord.gz", "train-00001-of-00003.tfrecord"]
    for name in (*named_so, "train-00000-of-00001.parquet", "README.md"):
        (dataset / name).write_bytes(b"somebody else's")
    detail = "the catalog does not name this file, and readers that list the folder read it; move or delete it"
    assert find_problems(dataset) == [Problem(name, None, detail) for name in named_so]


def test_shard_of_equal_content_is_not_taken_for_swapped(dataset: pathlib.Path) -> None:
    data = (dataset / FIRST).read_bytes()
    shard = Shard(FIRST, 3, END, google_crc32c.value(data))
    twin = dataclasses.replace(shard, name=SECOND)
    assert verify_shards.verify_shard(str(dataset), shard, siblings=[shard, twin]) == []


# Snapshots

IN_FIRST = f"../000001/{FIRST}"
REMOVED = {IN_FIRST: [1], f"../000001/{SECOND}": [0, 1]}


@pytest.fixture
def snapshots(tmp_path: pathlib.Path) -> pathlib.Path:
    """A dataset of two snapshots with the same records, three of which are removed from the first one's shards."""
    linked_snapshots.add(tmp_path / "out", write_dataset(tmp_path / "new"))
    linked_snapshots.add(tmp_path / "out", write_dataset(tmp_path / "new"), REMOVED)
    return tmp_path / "out"


def test_shards_of_earlier_snapshots_are_verified_with_the_latest(snapshots: pathlib.Path) -> None:
    names = [f"../000001/{FIRST}", f"../000001/{SECOND}", FIRST, SECOND, f"../000001/{TEST}", f"../000001/{EMPTY}"]
    expected = [(name, []) for name in (*names, TEST, EMPTY, "removed.bin")]
    assert list(verify_shards.verify_dataset(str(snapshots))) == expected
    first = [(name, []) for name in CONTENTS]
    assert list(verify_shards.verify_dataset(str(snapshots), snapshot="000001")) == first
    assert list(verify_shards.verify_dataset(str(snapshots / "snapshots/000001"))) == first


def test_removed_records_are_compared_and_not_checked(snapshots: pathlib.Path) -> None:
    seen = []

    def check(data: bytes) -> str | None:
        seen.append(data)
        return None

    assert not [each for _, found in verify_shards.verify_dataset(str(snapshots), check) for each in found]
    assert seen == [b"one", b"three", *CONTENTS[FIRST], *CONTENTS[SECOND], b"six", b"six"]
    flip(snapshots / "snapshots/000001" / FIRST, OFFSETS[1] + 13, 0x40)  # in the record that is removed
    [problem] = find_problems(snapshots)
    assert (problem.shard, problem.offset) == (IN_FIRST, OFFSETS[1])


def test_list_of_removed_records_is_compared_and_needed_for_the_records(snapshots: pathlib.Path) -> None:
    path = snapshots / "snapshots/000002/removed.bin"
    for data, detail in [
        (b"\1\0\0\0", "the file has 4 bytes, the catalog says 12"),
        (bytes(12), r"the file has the crc32c [0-9a-f]+, the catalog says .*: its"),
        (None, "the file is missing; the catalog says 12 bytes"),
    ]:
        path.unlink() if data is None else path.write_bytes(data)
        found = dict(verify_shards.verify_dataset(str(snapshots), lambda data: "is read" if data == b"two" else None))
        [problem] = found["removed.bin"]
        assert re.match(detail, problem.detail)
        assert [name for name, problems in found.items() if problems] == [FIRST, "removed.bin"]


def test_list_of_removed_records_that_fits_no_catalog_is_reported(snapshots: pathlib.Path) -> None:
    path = snapshots / "snapshots/000002/catalog.json"
    catalog = catalog_lib.load_catalog(path.parent)
    path.write_text(dataclasses.replace(catalog, files={}).to_json())
    (path.parent / "removed.bin").write_bytes(bytes(8))
    [problem] = find_problems(snapshots)
    assert problem.shard == "removed.bin" and "does not fit the catalog beside it" in problem.detail


def test_files_named_like_shards_are_looked_for_in_the_folder_of_the_snapshot_alone(snapshots: pathlib.Path) -> None:
    for name in ("000001", "000002"):
        (snapshots / "snapshots" / name / "train-00009-of-00010.tfrecord").write_bytes(b"")
    (snapshots / "test-00009-of-00010.tfrecord").write_bytes(b"")
    [problem] = find_problems(snapshots)
    assert problem.shard == "train-00009-of-00010.tfrecord" and "the catalog does not name this" in problem.detail


def test_problem_reads_as_a_line() -> None:
    assert str(Problem("a.tfrecord", 7, "broken")) == "a.tfrecord, byte offset 7: broken"
    assert str(Problem("a.tfrecord", None, "missing")) == "a.tfrecord: missing"
