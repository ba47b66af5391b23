from __future__ import annotations

import concurrent.futures
import gzip
import io
import os
import pathlib
import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from imagebeam import storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.packed import packed_file, parquet_content, unpacked_content
from tests import case_tables, error_texts

CONTENT = b"".join(index.to_bytes(4, "big") for index in range(50_000))


def write(path: pathlib.Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def unpacked(path: pathlib.Path, data: bytes) -> bytes:
    with packed_file.open_gzip(write(path, data), 0) as file:
        return file.read()


@pytest.mark.parametrize("padding", [b"", bytes(1000)], ids=["joined", "padded"])
def test_open_gzip_of_joined_files_yields_all_of_them(tmp_path: pathlib.Path, padding: bytes) -> None:
    members = [gzip.compress(bytes([index % 256]) * index) for index in range(300)]
    expected = b"".join(bytes([index % 256]) * index for index in range(300))
    assert unpacked(tmp_path / "a.gz", padding.join(members) + padding) == expected


def test_open_gzip_is_seekable_and_each_file_has_its_own_position(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "a.gz", gzip.compress(CONTENT))
    with packed_file.open_gzip(uri, 0) as one, packed_file.open_gzip(uri, 0) as other:
        assert one.seek(-4, io.SEEK_END) == len(CONTENT) - 4
        assert (one.read(), one.read(), other.read(8)) == (CONTENT[-4:], b"", CONTENT[:8])
        other.seek(4, io.SEEK_CUR)
        assert (other.tell(), other.read(4)) == (12, CONTENT[12:16])


def flip(data: bytes, position: int) -> bytes:
    position %= len(data)
    return data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :]


WHOLE = gzip.compress(CONTENT)
CUT_SHORT = "is gzip that was cut short; fetch it again"


def test_unpack_of_broken_gzip_raises_the_same_error_each_time(tmp_path: pathlib.Path) -> None:
    for data, reason, detail in [
        (b"", Reason.TRUNCATED, CUT_SHORT),  # empty
        (WHOLE[:5], Reason.TRUNCATED, CUT_SHORT),  # header
        (WHOLE[:-9], Reason.TRUNCATED, CUT_SHORT),  # data
        (WHOLE[:-1], Reason.TRUNCATED, CUT_SHORT),  # trailer
        (WHOLE + WHOLE[:9], Reason.TRUNCATED, CUT_SHORT),  # second
        (CONTENT, Reason.CORRUPT, "is broken gzip (Not a gzipped file"),  # no-gzip
        (flip(WHOLE, -8), Reason.CORRUPT, "is broken gzip (CRC check failed"),  # crc
        (flip(WHOLE, -1), Reason.CORRUPT, "is broken gzip (Incorrect length of data"),  # length
        (WHOLE + b"rest", Reason.CORRUPT, "is broken gzip (Not a gzipped file"),  # garbage
    ]:
        folder = case_tables.new_folder(tmp_path)
        uri = write(folder / "a.gz", data)
        for _ in range(2):
            with pytest.raises(packed_file.BrokenContentError) as caught:
                unpacked_content.unpack(uri)
            assert caught.value.reason == reason and caught.value.detail.startswith(detail)


def count_unpacking(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    unpacked = []
    unpack = unpacked_content._unpack_to_disk

    def counted(uri: str, version: int) -> unpacked_content.UnpackedFile:
        unpacked.append(os.path.basename(uri))
        return unpack(uri, version)

    monkeypatch.setattr(unpacked_content, "_unpack_to_disk", counted)
    return unpacked


def test_unpack_by_many_threads_reads_each_file_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = count_unpacking(monkeypatch)
    uris = [write(tmp_path / f"{index}.gz", gzip.compress(CONTENT)) for index in range(3)]
    broken = write(tmp_path / "broken.gz", WHOLE[:-1])
    for _ in range(3):
        with pytest.raises(packed_file.BrokenContentError):
            unpacked_content.unpack(broken)
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda index: unpacked_content.unpack(uris[index % 3]).read(index, 4), range(600)))
    assert found == [CONTENT[index : index + 4] for index in range(600)]
    assert sorted(unpacked) == ["0.gz", "1.gz", "2.gz", "broken.gz"]


@pytest.mark.parametrize("bound", [("MAX_FILES", 2), ("MAX_BYTES", 2 * len(CONTENT))], ids=["files", "bytes"])
def test_unpack_keeps_a_bounded_number_and_drops_the_least_recently_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int]
) -> None:
    monkeypatch.setattr(unpacked_content, "_UNPACKED", unpacked_content._UnpackedFiles())
    monkeypatch.setattr(unpacked_content, *bound)
    unpacked = count_unpacking(monkeypatch)
    uris = [write(tmp_path / f"{index}.gz", gzip.compress(CONTENT)) for index in range(3)]
    first = unpacked_content.unpack(uris[0])
    for index in (1, 2, 1, 2, 0):
        assert unpacked_content.unpack(uris[index]).read(0, 8) == CONTENT[:8]
    assert unpacked == ["0.gz", "1.gz", "2.gz", "0.gz"]
    assert first.read(0, len(CONTENT)) == CONTENT  # dropped, but still open here


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_unpack_closes_the_file_that_it_drops(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked_content, "_UNPACKED", unpacked_content._UnpackedFiles())
    monkeypatch.setattr(unpacked_content, "MAX_FILES", 2)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for index in range(9):
        unpacked_content.unpack(write(tmp_path / f"{index}.gz", gzip.compress(CONTENT)))
        with pytest.raises(packed_file.BrokenContentError):
            unpacked_content.unpack(write(tmp_path / f"broken-{index}.gz", WHOLE[:-1]))
    assert len(os.listdir("/proc/self/fd")) - before <= 2


def test_unpack_leaves_no_file_behind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    unpacked_content.unpack(write(tmp_path / "a.gz", WHOLE))
    assert os.listdir(tmp_path) == ["a.gz"]


def test_unpack_of_file_changed_since_the_listing_raises(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "a.gz", WHOLE)
    listed = os.stat(uri).st_mtime_ns
    assert unpacked_content.unpack(uri, listed).read(0, 4) == CONTENT[:4]
    write(tmp_path / "a.gz", gzip.compress(b"other"))
    os.utime(uri, ns=(0, listed + 1))
    assert unpacked_content.unpack(uri).read(0, 9) == b"other"
    with pytest.raises(storage.ChangedError):
        unpacked_content.unpack(uri, listed - 1)


def test_unpack_reads_files_of_a_remote_storage(tmp_path: pathlib.Path) -> None:
    store = storage.storage_of("memory://x")
    store.write_whole("memory://zipped/a.gz", WHOLE)
    assert unpacked_content.unpack("memory://zipped/a.gz").read(4, 8) == CONTENT[4:12]
    with packed_file.open_gzip("memory://zipped/a.gz", 0) as file:
        assert file.read() == CONTENT


def test_unpack_of_missing_file_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        unpacked_content.unpack(str(tmp_path / "a.gz"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_unpack_without_room_names_the_remedy(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/scratch")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: io.FileIO("/dev/full", "r+"))
    with error_texts.raises("unpack-no-room"):
        unpacked_content.unpack(write(tmp_path / "a.gz", WHOLE))


def spell(uri: str, version: int, part: str) -> Iterator[bytes]:
    """Yields the bytes of a file and the name of a part."""
    store = storage.storage_of(uri)
    yield store.read(uri, 0, store.stat(uri).size, version=version)
    yield part.encode()


@pytest.mark.parametrize("part", ["x", "train/images", "a#b", "50 %", "ä.gzip"])
def test_unpack_of_a_part_yields_what_its_format_reads(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(unpacked_content, "_PARTS", {".parts": spell})
    uri = write(tmp_path / "a#1.parts", b"file ")
    address = unpacked_content.part_of(uri, part)
    assert "/" not in address.removeprefix(uri)
    assert (unpacked_content.is_packed(address), unpacked_content.is_packed(uri)) == (True, False)
    assert (unpacked_content.split_part(address), unpacked_content.split_part(uri)) == ((uri, part), (uri, ""))
    assert unpacked_content.unpack(address).read(0, 99) == b"file " + part.encode()
    with pytest.raises(storage.ChangedError):
        unpacked_content.unpack(address, 1)


@pytest.mark.parametrize("address", ["a.gzip", "a.parts", "a.parts#", "a.parts#b/c", "b#c", "#", ""])
def test_split_part_of_other_addresses_finds_no_part(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(unpacked_content, "_PARTS", {".parts": spell})
    assert unpacked_content.split_part(address) == (address, "")
    assert not unpacked_content.is_packed(address)


# --- blocks of Parquet -----------------------------------------------------------------------------------------------


BLOCK = parquet_content.BLOCK_BYTES


def compress(data: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return packed


def mixed(num_bytes: int) -> bytes:
    """Returns bytes of which some repeat, so that all kinds of copies occur."""
    rng = random.Random(num_bytes)
    parts = [rng.randbytes(rng.choice((3, 50, 70, 3000))) for _ in range(40)]
    data = b"".join(rng.choices(parts, k=num_bytes // 300 + 1))
    return (data * (num_bytes // max(len(data), 1) + 1))[:num_bytes]


@pytest.mark.parametrize("num_bytes", [0, 1, 59, 60, 61, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
@pytest.mark.parametrize("make", [mixed, bytes, random.Random(1).randbytes], ids=["mixed", "zeros", "random"])
def test_each_run_of_blocks_decodes_alone(num_bytes: int, make: object) -> None:
    data = make(num_bytes)  # type: ignore[operator]
    packed = compress(data)
    blocks = parquet_content.find_blocks(packed, num_bytes)
    assert blocks is not None and len(blocks) == -(-num_bytes // BLOCK) + 1 and blocks[-1] == len(packed)
    for first in range(len(blocks) - 1):
        for last in range(first + 1, len(blocks)):
            plain = data[first * BLOCK : last * BLOCK]
            assert parquet_content.decode_blocks(packed[blocks[first] : blocks[last]], len(plain)) == plain


def test_damaged_stream_has_no_blocks() -> None:
    for packed, num_bytes in [
        (b"", 0),  # nothing
        (b"\x05\x00a", 5),  # shorter-than-said
        (b"\x01\x00a", 2),  # another-length
        (b"\x01\x00ab", 1),  # more-behind
        (b"\x01\x08a", 1),  # a-literal-that-ends-early
        (b"\x05\x00a\x01\x02", 5),  # a-copy-from-before-the-start
        (b"\x05\x00a\x01\x00", 5),  # a-copy-of-offset-zero
        (b"\xff" * 9, 5),  # a-length-without-end
        (b"\x05\x00a\x01", 5),  # a-tag-without-its-offset
    ]:
        assert parquet_content.find_blocks(packed, num_bytes) is None


def test_block_that_refers_to_an_earlier_one_is_found() -> None:
    literal = b"\xf4" + (BLOCK - 1).to_bytes(2, "little") + b"x" * BLOCK  # one block
    copy = b"\x0e" + (4).to_bytes(2, "little")  # of 4 bytes from 4 bytes before: in the block before
    length = BLOCK + 4
    packed = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + literal + copy
    assert parquet_content.find_blocks(packed, length) is None
    straddling = literal.replace(b"x", b"", 1)[3:]
    whole = b"\xf4" + (BLOCK - 2).to_bytes(2, "little") + straddling + copy
    length -= 1
    packed = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + whole
    assert pa.Codec("snappy").decompress(packed, length, asbytes=True) == b"x" * length
    assert parquet_content.find_blocks(packed, length) is None


def test_damaged_blocks_raise() -> None:
    with pytest.raises(OSError, match="snappy"):
        parquet_content.decode_blocks(b"\xff\xff", 10)
