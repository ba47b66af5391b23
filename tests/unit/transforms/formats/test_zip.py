"""Images in zip archives, written by Python's zipfile, which is an independent reading of the format."""

from __future__ import annotations

import io
import pathlib
import stat
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.formats import zip as zip_format
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.shard import read_ahead
from tests import case_tables, image_sets, tars, written_files

JPEG = image_sets.make_image(1)
BOTH = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def write(path: pathlib.Path, members: Sequence[tuple[Any, bytes]], method: int = zipfile.ZIP_DEFLATED) -> pathlib.Path:
    """Writes an archive; a name is a str or a ZipInfo."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data, method)
    return path


def list_zip(path: pathlib.Path, **options: Any) -> tars.Listed:
    return tars.list_all(zip_format.ZipSource(str(path.parent), archive=path.name, **options))


def fetch(refs: Sequence[ImageRef]) -> list[bytes | read_ahead.ReadError]:
    fetched = [*read_ahead.fetch(refs)]
    assert [ref for ref, _ in fetched] == [*refs]
    return [data for _, data in fetched]


@pytest.mark.parametrize("method", BOTH)
def test_members_are_images_by_their_paths(tmp_path: pathlib.Path, method: int) -> None:
    images = {f"train/cat/{index}.jpg": image_sets.make_image(index) for index in range(3)}
    others = [("train/", b""), ("readme.txt", b"x"), ("__MACOSX/train/._a.jpg", b"x"), (".DS_Store", b"x")]
    path = write(tmp_path / "a.zip", [*others, *images.items(), ("inner.zip", b"x")], method)
    found = list_zip(path)
    assert (found.rejects, found.problems) == ([], [])
    assert found.skipped == {"archive_in_archive": 1, "hidden": 2, "non_image": 1}
    assert [ref.key for ref in found.refs] == [*images]
    assert [ref.size for ref in found.refs] == [*map(len, images.values())]
    assert found.refs[0].uri == f"{path}!/train/cat/0.jpg"
    assert fetch(found.refs) == [*images.values()]


def test_only_a_folder_of_the_archive_and_globs(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.zip", [("x/train/cat/a.jpg", JPEG), ("x/train/b.png", JPEG), ("y/c.jpg", JPEG)])
    assert [ref.key for ref in list_zip(path, inside="x/train").refs] == ["cat/a.jpg", "b.png"]
    found = list_zip(path, include=("**/cat/*",))
    assert ([ref.key for ref in found.refs], found.skipped) == (["x/train/cat/a.jpg"], {"not_included": 2})


def test_archives_of_a_folder_are_folders_of_their_names(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "train.zip", [("cat/a.jpg", JPEG)])
    write(tmp_path / "test.zip", [("test/a.jpg", JPEG), ("test/b.jpg", JPEG)])  # not test/test/a.jpg
    write(tmp_path / "more" / "x.ZIP", [("a.jpg", JPEG)])
    (tmp_path / "a.jpg").write_bytes(JPEG)
    found = tars.list_all(zip_format.ZipSource(str(tmp_path)))
    assert [ref.key for ref in found.refs] == ["more/x/a.jpg", "test/a.jpg", "test/b.jpg", "train/cat/a.jpg"]
    assert (found.skipped, found.problems) == ({"other_file": 1}, [])
    assert fetch(found.refs) == [JPEG] * 4


def test_remote_archive_is_listed_by_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for index in range(3000):
            archive.writestr(f"cat/{index}.jpg", JPEG)
    fsspec.filesystem("memory").pipe("/zips/a.zip", buffer.getvalue())
    requests = tars.count_requests(monkeypatch)
    found = tars.list_all(zip_format.ZipSource("memory://zips", archive="a.zip"))
    assert (len(found.refs), found.problems) == (3000, [])
    listing = len(requests)
    assert listing <= 5
    assert fetch(found.refs[:3]) == [JPEG] * 3
    assert len(requests) == listing + 3  # one for each image


class Unseekable(io.RawIOBase):
    """A stream: zipfile then writes checksum and sizes behind the content."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


@pytest.mark.parametrize("method", BOTH)
def test_sizes_behind_the_content_are_read(tmp_path: pathlib.Path, method: int) -> None:
    stream = Unseekable()
    with zipfile.ZipFile(stream, "w", method) as archive:  # type: ignore[type-var]
        for index in range(3):
            archive.writestr(f"{index}.jpg", image_sets.make_image(index))
    (tmp_path / "a.zip").write_bytes(stream.data)
    found = list_zip(tmp_path / "a.zip")
    assert fetch(found.refs) == [image_sets.make_image(index) for index in range(3)]


@pytest.mark.parametrize("method", BOTH)
def test_zip64_bytes_before_and_a_comment_after(tmp_path: pathlib.Path, method: int) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(b"#!/bin/sh\n" * 50)
    with zipfile.ZipFile(path, "a", method) as archive:
        for index in range(3):
            with archive.open(f"{index}.jpg", "w", force_zip64=True) as member:
                member.write(image_sets.make_image(index))
        archive.comment = b"a comment" * 3
    found = list_zip(path)
    assert (found.problems, fetch(found.refs)) == ([], [image_sets.make_image(index) for index in range(3)])


def test_zip64_directory_is_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 500)  # of offsets and sizes
    path = write(tmp_path / "a.zip", [(f"{index}.jpg", image_sets.make_image(index)) for index in range(4)])
    assert b"PK\x06\x06" in path.read_bytes()
    assert fetch(list_zip(path).refs) == [image_sets.make_image(index) for index in range(4)]


def test_names_of_all_encodings(tmp_path: pathlib.Path) -> None:
    for raw, flags, key in [
        ("größe/ü.jpg".encode(), 0x800, "größe/ü.jpg"),  # utf-8
        ("größe/ü.jpg".encode(), 0, "größe/ü.jpg"),  # utf-8-not-flagged
        ("größe/ü.jpg".encode("cp437"), 0, "größe/ü.jpg"),  # cp437
        (b"cat\\a.jpg", 0, "cat/a.jpg"),  # windows
        (b"./cat/a.jpg", 0, "cat/a.jpg"),  # here
    ]:
        folder = case_tables.new_folder(tmp_path)
        name = "x" * len(raw)
        content = write(folder / "a.zip", [(name, JPEG)]).read_bytes().replace(name.encode(), raw)
        start = content.index(b"PK\x01\x02") + 8
        (folder / "a.zip").write_bytes(content[:start] + struct.pack("<H", flags) + content[start + 2 :])
        found = list_zip(folder / "a.zip")
        assert [ref.key for ref in found.refs] == [key]
        assert fetch(found.refs) == [JPEG]


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/a.jpg", "x/../../a.jpg", "C:\\a.jpg", "..\\a.jpg"])
def test_names_that_leave_the_archive_are_rejects(tmp_path: pathlib.Path, name: str) -> None:
    found = list_zip(write(tmp_path / "a.zip", [(name, JPEG), ("b.jpg", JPEG)]))
    assert [(reject.reason, len(found.refs)) for reject in found.rejects] == [(Reason.OUTSIDE_ROOT, 1)]
    assert "leaves the archive" in found.rejects[0].detail


def test_last_member_of_a_name_counts(tmp_path: pathlib.Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = write(tmp_path / "a.zip", [("a.jpg", b"old"), ("b.jpg", JPEG), ("a.jpg", JPEG)])
    found = list_zip(path)
    assert [ref.key for ref in found.refs] == ["b.jpg", "a.jpg"]
    assert fetch(found.refs) == [JPEG, JPEG]


def test_links_are_skipped(tmp_path: pathlib.Path) -> None:
    link = zipfile.ZipInfo("a.jpg")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    found = list_zip(write(tmp_path / "a.zip", [(link, b"../../secret.jpg")]))
    assert (found.refs, found.skipped) == ([], {"special_file": 1})


def patch_directory(path: pathlib.Path, offset: int, value: bytes) -> None:
    """Changes a field of the first entry of the directory."""
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\x01\x02") + offset
    content[start : start + len(value)] = value
    path.write_bytes(content)


def test_members_that_cannot_be_read_are_rejects(tmp_path: pathlib.Path) -> None:
    for offset, value, reason, message in [
        (8, b"\x01\x00", Reason.UNREADABLE, "it is encrypted"),  # encrypted
        (10, b"\x0e\x00", Reason.UNSUPPORTED_FORMAT, "compressed by lzma: pack it again"),  # lzma
        (10, b"\x55\x00", Reason.UNSUPPORTED_FORMAT, "compressed by method 85"),  # unknown
        (24, struct.pack("<I", 3_000_000_000), Reason.TOO_LARGE, "unpacks to 3,000,000,000 bytes"),  # huge
        (24, struct.pack("<I", 100_000_000), Reason.CORRUPT, "cannot unpack to 100,000,000"),  # lie
    ]:
        folder = case_tables.new_folder(tmp_path)
        path = write(folder / "a.zip", [("a.jpg", JPEG), ("b.jpg", JPEG)])
        patch_directory(path, offset, value)
        found = list_zip(path)
        assert [ref.key for ref in found.refs] == ["b.jpg"]
        assert [(reject.key, reject.reason) for reject in found.rejects] == [("a.jpg", reason)]
        assert message in found.rejects[0].detail


def test_bomb_is_not_unpacked(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.zip", [("a.jpg", bytes(50_000_000)), ("b.jpg", JPEG)])
    found = list_zip(path, max_image_bytes=1_000_000)
    assert [(each.key, each.reason) for each in found.rejects] == [("a.jpg", Reason.TOO_LARGE)]
    patch_directory(path, 24, struct.pack("<I", 1000))  # says that it is small
    found = list_zip(path, max_image_bytes=1_000_000)
    bomb, good = fetch(found.refs)
    assert isinstance(bomb, read_ahead.ReadError)
    assert "a.zip!/a.jpg unpacks to more bytes, the archive says 1,000" in bomb.detail
    assert good == JPEG


@pytest.mark.parametrize("method", BOTH)
def test_damaged_content_is_a_read_error(tmp_path: pathlib.Path, method: int) -> None:
    path = write(tmp_path / "a.zip", [("a.jpg", JPEG), ("b.jpg", JPEG)], method)
    written_files.flip(path, len(JPEG) // 2)
    bad, good = fetch(list_zip(path).refs)
    assert isinstance(bad, read_ahead.ReadError)
    assert (bad.reason, good) == (Reason.CORRUPT, JPEG)
    assert "fetch the archive again" in bad.detail


def test_archive_that_cannot_be_read_is_a_problem(tmp_path: pathlib.Path) -> None:
    for content, message in [
        (lambda data: data[:-30], "is no zip archive (File is not a zip file)"),
        (lambda data: b"", "is no zip archive (File is not a zip file)"),
        (lambda data: data[200:], "it was cut short"),
        (lambda data: data.replace(b"PK\x01\x02", b"PK\x01\x03", 1), "(Bad magic number for central directory)"),
        (
            lambda data: data[: (at := data.index(b"PK\x01\x02") + 34)] + b"\1" + data[at + 1 :],
            "it is one of several files of an archive: join them first (zip -s 0)",
        ),
    ]:
        folder = case_tables.new_folder(tmp_path)
        path = write(folder / "a.zip", [("a.jpg", JPEG), ("b.jpg", JPEG)])
        path.write_bytes(content(path.read_bytes()))
        [problem] = list_zip(path).problems
        assert f"zip archive '{path}': " in problem and message in problem


def test_offset_outside_of_the_archive_is_a_problem(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.zip", [("a.jpg", JPEG)])
    patch_directory(path, 42, struct.pack("<I", 10**9))
    [problem] = list_zip(path).problems
    assert "says that 'a.jpg' lies outside of the archive" in problem


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_bytes_never_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.zip"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jpg", b"abc" * 50)
        archive.writestr("b.jpg", b"x")
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        for member in zip_format.read_members(str(path)):
            start, size = member.entry.header_offset, member.entry.file_size
            if size < 10_000:
                assert len(packed_file.unpack_member(bytes(content[start : start + member.length]), size)) == size
    except (zip_format.ZipError, packed_file.BrokenContentError):
        pass


def test_addresses() -> None:
    assert packed_file.archive_of("gs://b/a.zip!/x/y.jpg") == "gs://b/a.zip"
    assert packed_file.archive_of("/d/A.ZIP!/y.jpg") == "/d/A.ZIP"
    assert packed_file.archive_of("/d/a.tar") is None
    assert packed_file.archive_of("/d!/a.tar") is None
