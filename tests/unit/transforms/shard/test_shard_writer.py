from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import struct
from collections.abc import Iterator

import pytest

from imagebeam import example, records, storage
from imagebeam.transforms import elements
from imagebeam.transforms.dataset_settings import DatasetSettings
from imagebeam.transforms.elements import ImageRef, Reason, Reject, WrittenShard
from imagebeam.transforms.images import prepare
from imagebeam.transforms.shard import encode, shard_file, shard_writer, writer_processes
from tests import delayed_storage, error_texts, written_files
from tests.delayed_storage import DelayedStorage
from tests.unit.transforms import small_dataset

SHARD = "train-00000-of-00001.tfrecord"
INDEX = "train-00000-of-00001.index"
SIZES = "train-00000-of-00001.sizes"
DONE = SHARD + shard_writer.DONE_SUFFIX
REJECTS = SHARD + shard_writer.REJECTS_SUFFIX


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    return small_dataset.make_refs(tmp_path / "pets")


@pytest.fixture
def layout(tmp_path: pathlib.Path) -> DatasetSettings:
    return small_dataset.make_settings(tmp_path / "out")


def staged_files(layout: DatasetSettings) -> dict[str, bytes]:
    return small_dataset.read_files(pathlib.Path(layout.paths.staging("f1")))


def write(layout: DatasetSettings, refs: list[ImageRef]) -> WrittenShard:
    """Writes all of `refs` into one shard."""
    plan = small_dataset.make_plan({"train": refs}, num_shards=1, labels=("cat", "dog"))
    (written,) = small_dataset.write_shards(layout, plan, {"train": refs})
    return written


def refuse_to_write(*_: object) -> WrittenShard:
    raise AssertionError("a finished shard was written again")


def test_write_reports_progress_after_each_image(
    layout: DatasetSettings, refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[int] = []
    monkeypatch.setattr(writer_processes, "note_progress", notes.append)
    write(layout, refs)
    assert notes == list(range(len(refs)))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_write_orders_and_counts_the_images(refs: list[ImageRef], layout: DatasetSettings, compression: str) -> None:
    layout = dataclasses.replace(layout, compression=compression)
    written = write(layout, refs)
    stored = staged_files(layout)[SHARD]
    assert (written.split, written.shard.name, written.shard.records) == ("train", SHARD, 10)
    assert (written.shard.bytes, written.shard.crc32c) == (len(stored), records.extend_crc(0, stored))
    assert written.rejected == {}
    assert written.statistics["labels"] == {"cat": 5, "dog": 5}
    with open(storage.join(layout.paths.staging("f1"), SHARD), "rb") as file:
        found = list(records.read_records(file, compression))
    examples = [example.parse_example(record.data) for record in found]
    assert [each["image/key"] for each in examples] == [[ref.key.encode()] for ref in refs]
    assert [each["image/class/label"] for each in examples] == [[0]] * 5 + [[1]] * 5
    assert [each["image/encoded"] for each in examples] == [[pathlib.Path(ref.uri).read_bytes()] for ref in refs]
    if compression == "none":
        offsets = records.decode_index(staged_files(layout)[INDEX])
        assert list(offsets) == [*(record.offset for record in found), len(stored)]
        sides = [side for each in examples for name in ("height", "width") for side in each[f"image/{name}"]]
        assert staged_files(layout)[SIZES] == struct.pack("<20H", *sides)
    else:
        assert staged_files(layout).keys().isdisjoint({INDEX, SIZES})


def test_refs_of_task_are_in_the_order_of_ranks(refs: list[ImageRef]) -> None:
    runs = [(start, elements.pack_refs(refs[start : start + 3])) for start in (6, 0, 9, 3)]
    task = shard_writer.ShardTask("train", 0, 1, ((0, b""), *runs))
    assert list(task.refs()) == refs


def test_write_of_one_shard_by_many_threads_leaves_one(refs: list[ImageRef], layout: DatasetSettings) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        written = [each._replace(is_kept=False) for each in pool.map(lambda _: write(layout, refs), range(8))]
    assert all(each == written[0] for each in written)
    assert sorted(staged_files(layout)) == [INDEX, SIZES, SHARD, DONE]


def test_finished_shard_is_kept(refs: list[ImageRef], layout: DatasetSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    first, files = write(layout, refs), staged_files(layout)
    monkeypatch.setattr(shard_writer.ShardWriter, "write_unfinished", refuse_to_write)
    assert (write(layout, refs), staged_files(layout)) == (first._replace(is_kept=True), files)


@pytest.fixture
def delayed() -> Iterator[DelayedStorage]:
    """A storage that keeps checksums."""
    store = DelayedStorage()
    with delayed_storage.mounted(store):
        yield store


def test_finished_shard_is_not_read_where_the_storage_keeps_its_checksum(
    refs: list[ImageRef], layout: DatasetSettings, delayed: DelayedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pathlib.Path(refs[3].uri).write_bytes(b"no image")
    layout = dataclasses.replace(layout, output=f"{delayed_storage.SCHEME}://host/out")
    first = write(layout, refs)
    staged = f"{layout.paths.staging('f1')}/{SHARD}"
    delayed.add(staged, delayed_storage.NotKept(first.shard.bytes, first.shard.crc32c))  # reading it fails
    delayed.requests.clear()
    monkeypatch.setattr(shard_writer.ShardWriter, "write_unfinished", refuse_to_write)
    assert write(layout, refs) == first._replace(is_kept=True)
    assert delayed.requests == {"read": 4, "checksum": 1}  # description, index, sizes, rejects; the shard


@pytest.mark.parametrize(("more_bytes", "flipped"), [(1, 0), (0, 1)], ids=["size", "crc32c"])
def test_staged_shard_with_another_checksum_is_written_again(
    refs: list[ImageRef], layout: DatasetSettings, delayed: DelayedStorage, more_bytes: int, flipped: int
) -> None:
    layout = dataclasses.replace(layout, output=f"{delayed_storage.SCHEME}://host/out")
    first = write(layout, refs)
    staged = f"{layout.paths.staging('f1')}/{SHARD}"
    delayed.add(staged, delayed_storage.NotKept(first.shard.bytes + more_bytes, first.shard.crc32c ^ flipped))
    assert write(layout, refs) == first
    assert storage.storage_of(staged).stored_checksum(staged) == (first.shard.bytes, first.shard.crc32c)


def empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: pathlib.Path) -> None:
    written_files.flip(path, path.stat().st_size // 2)


def change_fields(path: pathlib.Path) -> None:
    path.write_text(json.dumps({"shards": {}}))  # as another version might


def test_write_of_shard_whose_staged_files_are_damaged_writes_it_again(
    refs: list[ImageRef], layout: DatasetSettings
) -> None:
    pathlib.Path(refs[3].uri).write_bytes(b"no image")
    first, files = write(layout, refs), staged_files(layout)
    for name, damage in [
        (SHARD, os.unlink),  # shard-missing
        (SHARD, empty),  # shard-empty
        (SHARD, flip_a_bit),  # shard-changed
        (INDEX, os.unlink),  # index-missing
        (INDEX, empty),  # index-empty
        (INDEX, flip_a_bit),  # index-changed
        (SIZES, os.unlink),  # sizes-missing
        (SIZES, empty),  # sizes-empty
        (SIZES, flip_a_bit),  # sizes-changed
        (REJECTS, os.unlink),  # rejects-missing
        (REJECTS, empty),  # rejects-empty
        (DONE, os.unlink),  # description-missing
        (DONE, empty),  # description-empty
        (DONE, change_fields),  # description-of-another-version
    ]:
        damage(pathlib.Path(layout.paths.staging("f1"), name))
        assert (write(layout, refs), staged_files(layout)) == (first, files)


def test_write_of_shard_that_an_interrupted_commit_moved_to_the_output_keeps_it(
    refs: list[ImageRef], layout: DatasetSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(layout, refs)
    output, staging = pathlib.Path(layout.output), pathlib.Path(layout.paths.staging("f1"))
    (output / "index").mkdir()
    os.replace(staging / SHARD, output / SHARD)
    for name in (INDEX, SIZES):
        os.replace(staging / name, output / "index" / name)
    monkeypatch.setattr(shard_writer.ShardWriter, "write_unfinished", refuse_to_write)
    assert write(layout, refs) == first._replace(is_kept=True)


def test_write_of_shard_whose_name_another_dataset_has_in_the_output_writes_it(
    refs: list[ImageRef], layout: DatasetSettings
) -> None:
    first = write(layout, refs)
    os.replace(pathlib.Path(layout.paths.staging("f1"), SHARD), pathlib.Path(layout.output, SHARD))
    flip_a_bit(pathlib.Path(layout.output, SHARD))
    assert write(layout, refs) == first
    assert len(staged_files(layout)[SHARD]) == first.shard.bytes


def test_write_of_bad_images_stores_rejects_and_leaves_them_out(refs: list[ImageRef], layout: DatasetSettings) -> None:
    refs = [ref._replace(size=-1, version=0) for ref in refs]  # a listing may know neither
    pathlib.Path(refs[2].uri).write_bytes(b"no image")
    pathlib.Path(refs[4].uri).unlink()
    pathlib.Path(refs[7].uri).write_bytes(b"")
    written = write(layout, [*refs, ImageRef("odd\udcff", "/nowhere/odd\udcff")])
    assert written.rejected == {"empty_file": 1, "not_an_image": 1, "not_found": 2}
    assert (written.shard.records, written.statistics["labels"]) == (7, {"cat": 3, "dog": 4})
    rejects = [Reject(**json.loads(line)) for line in staged_files(layout)[REJECTS].splitlines()]
    assert [(reject.key, reject.stage, reject.reason) for reject in rejects] == [
        (refs[2].key, "check", Reason.NOT_AN_IMAGE),
        (refs[4].key, "read", Reason.NOT_FOUND),
        (refs[7].key, "check", Reason.EMPTY_FILE),
        ("odd\udcff", "read", Reason.NOT_FOUND),
    ]
    assert rejects[0].detail == "text: the first of 8 bytes are b'no image'"
    assert rejects[3].uri == "/nowhere/odd\udcff"


def test_memory_that_does_not_suffice_names_the_image(
    refs: list[ImageRef], layout: DatasetSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(prepare.ImagePolicy, "prepare", fail)
    with pytest.raises(MemoryError, match=rf"'{re.escape(refs[0].uri)}' \('.*'\): the image does not fit into memory"):
        write(layout, refs)


def test_write_of_no_image_leaves_an_empty_shard(layout: DatasetSettings) -> None:
    written = write(layout, [])
    files = staged_files(layout)
    assert (written.shard.records, written.shard.bytes, written.shard.crc32c) == (0, 0, 0)
    assert (files[SHARD], files[INDEX], files[SIZES]) == (b"", bytes(8), b"")
    assert sorted(files) == [INDEX, SIZES, SHARD, DONE]


@pytest.mark.parametrize("error", [KeyError, OSError, KeyboardInterrupt])
def test_write_that_fails_leaves_no_temporary_file(
    refs: list[ImageRef], layout: DatasetSettings, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def encode_two(self: encode.ExampleRecipe, ref: ImageRef, image: object) -> tuple[bytes, bytes]:
        if ref == refs[2]:
            raise error("boom")
        return b"record", b""

    monkeypatch.setattr(encode.ExampleRecipe, "encode", encode_two)
    with pytest.raises(error, match="boom"):
        write(layout, refs)
    assert staged_files(layout) == {}


def test_write_raises_if_the_disk_reads_back_other_bytes(
    refs: list[ImageRef], layout: DatasetSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_file.ShardFile, "finish", lambda self: (0, 0))
    message = rf"^shard .*/{SHARD}: the bytes read back differ from those written: faulty memory or disk$"
    with pytest.raises(OSError, match=message):
        write(layout, refs)
    assert DONE not in staged_files(layout)


@pytest.mark.parametrize("content", [b"", bytes(40)], ids=["cut-short", "broken"])
def test_copy_of_a_record_that_is_damaged_fails(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "shard").write_bytes(content)
    ref = ImageRef("cat/0.jpg", str(tmp_path / "shard"), offset=0, length=40, columns=(None,))
    copier = shard_writer.RecordCopier(str(tmp_path), str(tmp_path / "out"), encode.ExampleRecipe((), {}))
    with error_texts.raises("record-broken" if content else "record-unreadable"):
        copier.write(shard_writer.ShardTask("train", 0, 1, ((0, elements.pack_refs([ref])),)))
