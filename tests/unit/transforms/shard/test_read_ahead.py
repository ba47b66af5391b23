from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import os
import pathlib
from collections.abc import Iterator

import pytest

from imagebeam import storage
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.shard import read_ahead


@pytest.fixture(autouse=True, params=["in-c", "in-python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reads local files, and parts of open ones, in C or in Python."""
    if request.param == "in-python":
        monkeypatch.setattr(read_ahead, "_read_file", lambda path, size, version: None)
        monkeypatch.setattr(read_ahead, "_read_part", lambda descriptor, offset, length, version: None)
    return request.param


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    """References of 50 files, file i of i bytes i."""
    refs = []
    for index in range(50):
        path = tmp_path / f"{index}.jpg"
        path.write_bytes(bytes([index]) * index)
        refs.append(ImageRef(path.name, str(path), index))
    return refs


def count_open(folder: pathlib.Path) -> int:
    """Returns how many files of a folder this process has open."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one of the listing itself
            continue
    return sum(target.startswith(f"{folder}/") for target in targets)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")

AGAIN = "to take it in, run the same convert command again with --overwrite"


def read_error(ref: ImageRef) -> read_ahead.ReadError:
    ((found, error),) = read_ahead.fetch([ref])
    assert found == ref
    assert isinstance(error, read_ahead.ReadError)
    return error


def test_fetch_between_failures_yields_the_others_in_order(refs: list[ImageRef], tmp_path: pathlib.Path) -> None:
    asked = [ref for good in refs for ref in (good, ImageRef("gone", str(tmp_path / "gone")))]
    fetched = list(read_ahead.fetch(asked))
    assert [ref for ref, _ in fetched] == asked
    assert [data for _, data in fetched[::2]] == [bytes([index]) * index for index in range(50)]
    assert {str(error) for _, error in fetched[1::2]} == {"No such file or directory"}


def test_fetch_of_what_cannot_be_read_yields_the_reason(tmp_path: pathlib.Path) -> None:
    for kind, reason, detail in [
        ("missing", Reason.NOT_FOUND, "No such file or directory"),  # missing
        ("directory", Reason.UNREADABLE, "Is a directory"),  # directory
        ("pipe", Reason.UNREADABLE, "Illegal seek"),  # pipe
        ("loop", Reason.UNREADABLE, "Too many levels of symbolic links"),  # link-loop
        ("below-file", Reason.UNREADABLE, "Not a directory"),  # below-file
    ]:
        path = tmp_path / kind
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)  # nobody writes to it: a read that waits would wait for ever
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "below-file":
            path.write_bytes(b"x")
            path = path / "image.jpg"
        error = read_error(ImageRef("k", str(path)))
        assert (error.reason, error.detail, str(error)) == (reason, detail, detail)


@contextlib.contextmanager
def no_file_opens(number: int) -> Iterator[None]:
    """Ends before the test does: pytest opens its folder to remove it."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", fail)
        patch.setattr(read_ahead, "_read_file", lambda path, size, version: None)  # fails too, without a reason
        yield


def test_fetch_without_permission_yields_the_reason() -> None:
    with no_file_opens(errno.EACCES):  # root may read everything
        error = read_error(ImageRef("k", "/data/1.jpg"))
    assert (error.reason, error.detail) == (Reason.UNREADABLE, "Permission denied")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=errno.errorcode.get)
def test_fetch_on_a_machine_at_its_limits_raises_instead_of_rejecting(refs: list[ImageRef], number: int) -> None:
    with no_file_opens(number), pytest.raises(OSError, match=os.strerror(number)) as caught:
        list(read_ahead.fetch(refs))
    assert not isinstance(caught.value, read_ahead.ReadError)


def test_fetch_of_byte_range_yields_those_bytes(tmp_path: pathlib.Path) -> None:
    for offset, length, expected in [
        (0, 4, b"0123"),  # beginning
        (3, 4, b"3456"),  # middle
        (7, -1, b"789"),  # to-the-end
        (10, 0, b""),  # nothing
    ]:
        path = tmp_path / "images.tar"
        path.write_bytes(b"0123456789")
        ref = ImageRef("member", str(path), size=max(length, 3), offset=offset, length=length)
        assert list(read_ahead.fetch([ref])) == [(ref, expected)]


def test_fetch_of_byte_ranges_after_the_file_changed_yields_the_reason_of_each(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(b"0123456789")
    listed = path.stat().st_mtime_ns
    refs = [ImageRef("k", str(path), 3, listed, offset=offset, length=3) for offset in (0, 3, 8, 6)]
    fetched = read_ahead.fetch(refs)
    assert [next(fetched)[1], next(fetched)[1]] == [b"012", b"345"]
    _, error = next(fetched)
    assert isinstance(error, read_ahead.ReadError)
    assert (error.reason, error.detail) == (Reason.TRUNCATED, "the file ends 1 bytes early")
    os.utime(path, ns=(0, listed + 1))
    _, error = next(fetched)
    assert isinstance(error, read_ahead.ReadError)
    assert (error.reason, error.detail) == (Reason.CHANGED, f"was written since it was listed; {AGAIN}")


def test_file_of_another_size_than_the_table_says_blames_the_table(tmp_path: pathlib.Path) -> None:
    for where in ["local", "memory"]:
        uri = f"{tmp_path}/image.jpg" if where == "local" else f"memory://{tmp_path.name}/image.jpg"
        storage.storage_of(uri).write_whole(uri, bytes(1083))
        ref = ImageRef("k", uri, size=1084)
        error = read_error(ref)
        assert error.explain(ref, "") == error.detail
        assert error.explain(ref, "size") == (
            "has 1,083 bytes, column 'size' of the table says 1,084; to take it in, correct the table and run the same "
            "convert command again with --overwrite"
        )
        missing = ref._replace(uri=f"{uri}-missing")
        assert read_error(missing).explain(missing, "size") == read_error(missing).detail


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read counts as slow, and as one that waited."""
    monkeypatch.setattr(read_ahead, "_SLOW_SEC", -1)
    monkeypatch.setattr(read_ahead, "_count_waits", itertools.count().__next__)


@needs_proc
@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize(("name", "value"), [("_SLOW_SEC", 3600), ("_count_waits", lambda: 7)], ids=["fast", "busy"])
def test_fetch_that_waits_for_no_disk_opens_none_ahead(
    refs: list[ImageRef], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(read_ahead, name, value)
    assert [count_open(tmp_path) for _ in read_ahead.fetch(refs)] == [0] * len(refs)


@needs_proc
@pytest.mark.usefixtures("slow_disk")
def test_fetch_after_slow_reads_announces_some_files_and_tries_again(
    refs: list[ImageRef], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_ANNOUNCED", 3)
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advised.append(arguments))
    fetched = read_ahead.fetch(refs[:20])
    assert [len(data) for _, data in fetched if not isinstance(data, read_ahead.ReadError)] == list(range(20))
    assert 3 <= len(advised) < 20  # at least two reads in between wait for the disk


@needs_proc
@pytest.mark.usefixtures("slow_disk")
def test_fetch_reads_ahead_with_a_bounded_number_of_open_files(refs: list[ImageRef], tmp_path: pathlib.Path) -> None:
    most = 0

    def watched() -> Iterator[ImageRef]:
        nonlocal most
        for ref in refs:
            yield ref
            most = max(most, count_open(tmp_path))  # when the next is asked for: the last one has been opened

    for _ in read_ahead.fetch(watched()):
        most = max(most, count_open(tmp_path))
    assert most == read_ahead.MAX_READS - 1
    assert count_open(tmp_path) == 0


@needs_proc
@pytest.mark.usefixtures("slow_disk")
def test_fetch_of_large_images_reads_ahead_bounded_bytes(refs: list[ImageRef], tmp_path: pathlib.Path) -> None:
    ahead = [(ref.size, count_open(tmp_path)) for ref, _ in read_ahead.fetch(refs, read_ahead.ReadAhead(32, 100))]
    assert [opened for size, opened in ahead if size >= 40] == [2] * 8 + [1, 0]  # 2 of 40 to 49 bytes, no third
    assert len(ahead) == 50


def test_fetch_of_image_above_the_bound_still_yields_it(refs: list[ImageRef]) -> None:
    assert [len(data) for _, data in read_ahead.fetch(refs, read_ahead.ReadAhead(32, 10))] == list(range(50))


@needs_proc
@pytest.mark.usefixtures("slow_disk")
def test_fetch_that_is_given_up_early_closes_its_files(refs: list[ImageRef], tmp_path: pathlib.Path) -> None:
    for num_taken in [3, 20]:
        fetched = read_ahead.fetch(refs)
        for _ in range(num_taken):
            next(fetched)
        assert count_open(tmp_path) > 0
        fetched.close()
        assert count_open(tmp_path) == 0


def ranges(path: pathlib.Path, content: bytes, count: int = 50) -> list[ImageRef]:
    """References of parts of a file that holds `content`, part i of i bytes."""
    size = path.stat()
    starts = [index * (index - 1) // 2 for index in range(count)]
    assert starts[-1] + count <= len(content)
    return [
        ImageRef(str(index), str(path), index, size.st_mtime_ns, offset=start, length=index)
        for index, start in enumerate(starts)
    ]


CONTENT = bytes(index * 7 % 251 for index in range(2000))


def part(ref: ImageRef) -> bytes:
    return CONTENT[ref.offset : ref.offset + ref.length]


@needs_proc
def test_fetch_of_many_parts_of_one_file_opens_it_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "images.tar"
    path.write_bytes(CONTENT)
    opened = []
    open_file = read_ahead._open
    monkeypatch.setattr(read_ahead, "_open", lambda path: opened.append(path) or open_file(path))
    asked = ranges(path, CONTENT)
    fetched = read_ahead.fetch(asked)
    assert next(fetched) == (asked[0], b"")
    assert count_open(tmp_path) == 1
    assert list(fetched) == [(ref, part(ref)) for ref in asked[1:]]
    assert opened == [str(path)]
    assert count_open(tmp_path) == 0


@needs_proc
def test_fetch_of_parts_of_many_files_keeps_a_bounded_number_open(tmp_path: pathlib.Path) -> None:
    asked = []
    for index in range(2 * read_ahead._MAX_SHARED):
        path = tmp_path / f"{index}.tar"
        path.write_bytes(CONTENT)
        asked.append(ranges(path, CONTENT))
    in_turn = [ref for refs in zip(*asked) for ref in refs]
    most = 0
    for number, (ref, data) in enumerate(read_ahead.fetch(in_turn)):
        assert data == part(ref)
        if number % 7 == 0:  # to count takes longer than to read
            most = max(most, count_open(tmp_path))
    assert most == read_ahead._MAX_SHARED
    assert count_open(tmp_path) == 0


def test_fetch_of_parts_of_gzip_files_yields_what_they_hold(tmp_path: pathlib.Path) -> None:
    plain, zipped = tmp_path / "images.idx", tmp_path / "images.idx.gz"
    plain.write_bytes(CONTENT)
    zipped.write_bytes(gzip.compress(CONTENT))
    remote = "memory://fetched/images.idx.gz"
    storage.storage_of(remote).write_whole(remote, gzip.compress(CONTENT))
    over_network = [ref._replace(uri=remote, version=0) for ref in ranges(zipped, CONTENT)]
    asked = [ref for refs in zip(ranges(plain, CONTENT), ranges(zipped, CONTENT), over_network) for ref in refs]
    assert list(read_ahead.fetch(asked)) == [(ref, part(ref)) for ref in asked]
    whole = ImageRef("k", str(zipped))
    assert list(read_ahead.fetch([whole])) == [(whole, zipped.read_bytes())]


def test_fetch_of_part_of_broken_gzip_file_yields_the_reason(tmp_path: pathlib.Path) -> None:
    for change, reason, detail in [
        ("cut", Reason.TRUNCATED, "the file is gzip that was cut short; fetch it again"),  # cut-short
        ("plain", Reason.CORRUPT, "the file is broken gzip (Not a gzipped file (b'\\x00\\x07')); fetch it again"),
        ("short", Reason.TRUNCATED, "the file ends 10 bytes early"),  # holds-less
        ("touched", Reason.CHANGED, f"was written since it was listed; {AGAIN}"),  # written-since
        ("gone", Reason.NOT_FOUND, "No such file or directory"),  # gone
    ]:
        path = tmp_path / "images.gz"
        data = gzip.compress(CONTENT)
        path.write_bytes({"cut": data[:-3], "plain": CONTENT, "short": gzip.compress(CONTENT[:-10])}.get(change, data))
        listed = path.stat().st_mtime_ns - (change == "touched")
        if change == "gone":
            path.unlink()
        asked = [ImageRef("k", str(path), 20, listed, offset=len(CONTENT) - 20, length=20)] * 2
        for _, error in read_ahead.fetch(asked):
            assert isinstance(error, read_ahead.ReadError)
            assert (error.reason, error.detail) == (reason, detail)
