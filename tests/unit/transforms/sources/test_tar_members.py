from __future__ import annotations

import io
import os
import pathlib
import subprocess
import tarfile
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.sources import tar_members
from imagebeam.transforms.sources.tar_members import Member, TarError

LONG = "deep/" * 60 + "x" * 120 + ".jpg"


def read_all(data: bytes) -> list[Member]:
    return list(tar_members.read_members(lambda offset, length: data[offset : offset + length], len(data)))


def make(members: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as file:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            file.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def with_tarfile(data: bytes) -> list[tuple[str, int, int]]:
    """Reads the regular files of a tar with Python's tarfile: name, offset, size."""
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        return [(each.name, each.offset_data, each.size) for each in file if each.isreg()]


@pytest.mark.parametrize(
    ("format", "names"),
    [
        pytest.param(format, names, id=f"{format_id}-{names_id}")
        for format_id, format in (("ustar", 0), ("gnu", 1), ("pax", 2))
        for names_id, names in (
            ("short", ["a.jpg", "a.cls", "b/c.jpg"]),
            ("prefix", ["d" * 90 + "/" + "e" * 90 + ".jpg", "f.jpg"]),
            ("long", [LONG, "g.jpg", LONG + "2"]),
            ("not-ascii", ["käse.jpg", "日本.jpg", "\udcff\udcfe.jpg"]),
        )
        if (format_id, names_id) != ("ustar", "long")  # it has no such names
    ],
)
def test_members_are_equal_to_those_of_tarfile(format: int, names: list[str]) -> None:
    data = make({name: os.urandom(3 + 700 * index) for index, name in enumerate(names)}, format)
    expected = with_tarfile(data)
    assert [(each.name, each.offset, each.size) for each in read_all(data)] == expected
    assert [name for name, _, _ in expected] == names


def test_tars_of_gnu_tar_are_read(tmp_path: pathlib.Path) -> None:
    names = ["x/1.jpg", "x/1.cls", LONG[:200] + "long.jpg"]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    os.link(tmp_path / "in" / "x/1.jpg", tmp_path / "in" / "x/2.jpg")
    os.link(tmp_path / "in" / names[2], tmp_path / "in" / f"{names[2]}.jpg")
    os.symlink("1.jpg", tmp_path / "in" / "x/3.jpg")
    with open(tmp_path / "in" / "x/hole.bin", "wb") as file:
        for start in range(0, 8):
            file.seek(start << 20)
            file.write(b"data")
    for format in ("gnu", "posix"):
        subprocess.run(
            [
                "tar",
                "--sparse",
                f"--format={format}",
                "--sort=name",
                "-cf",
                tmp_path / "x.tar",
                "-C",
                tmp_path / "in",
                ".",
            ],
            check=True,
        )
        data = (tmp_path / "x.tar").read_bytes()
        found = {each.name.removeprefix("./"): each for each in read_all(data)}
        for name in names:
            each = found[name]
            assert (each.kind, data[each.offset : each.offset + each.size]) == (tar_members.FILE, name.encode())
        for link, name in (("x/2.jpg", "x/1.jpg"), (f"{names[2]}.jpg", names[2])):  # stored once
            assert found[link] == found[name]._replace(name=found[link].name)
        assert found["x/3.jpg"].kind == tar_members.LINK
        assert (found["x/hole.bin"].kind, found["x/"].kind) == (tar_members.SPARSE, tar_members.DIRECTORY)


def test_joined_tars_are_all_read() -> None:
    data = make({"a.jpg": b"1"}) + make({"b.jpg": b"2"})
    assert [each.name for each in read_all(data)] == ["a.jpg", "b.jpg"]


def test_size_beyond_eleven_octal_digits_is_read() -> None:
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        header = tarfile.TarInfo("big.jpg")
        header.size = 20 << 30
        head = header.tobuf(format)
        end = len(head) + header.size

        def read(offset: int, length: int, head: bytes = head) -> bytes:
            return (head[offset : offset + length] if offset < len(head) else b"").ljust(length, b"\0")

        assert list(tar_members.read_members(read, end + 1024)) == [
            Member("big.jpg", tar_members.FILE, len(head), 20 << 30)
        ]


WHOLE = make({"a.jpg": b"x" * 700, "b.jpg": b"y" * 10})  # headers at 0 and 1536, end at 2560


@pytest.mark.parametrize(
    ("data", "offset", "message"),
    [
        pytest.param(WHOLE[:1700], 1536, "cut short in a header, after 164 of 512 bytes", id="in-header"),
        pytest.param(WHOLE[:1000], 0, r"member 'a.jpg' of 700 bytes lacks 212", id="in-data"),
        pytest.param(WHOLE[:1536], 1536, "without the zeros that end a tar", id="between-members"),
        pytest.param(WHOLE[:1600] + b"\1" + WHOLE[1601:], 1536, "checksum of a member's header", id="header-changed"),
        pytest.param(b"no tar at all" * 100, 0, "this is not a tar", id="other-file"),
        pytest.param(WHOLE[:2560] + b"\0" * 9, 2569, "without the zeros that end a tar", id="in-the-end"),
        pytest.param(b"", 0, "without the zeros that end a tar", id="empty"),
        pytest.param(WHOLE + b"left over" * 60, len(WHOLE), "checksum of a member's header", id="more-behind-the-end"),
    ],
)
def test_broken_tar_is_an_error_with_its_offset(data: bytes, offset: int, message: str) -> None:
    with pytest.raises(TarError, match=message) as raised:
        read_all(data)
    assert raised.value.offset == offset
    assert str(raised.value).endswith(f"at byte offset {offset}")


def change_header(data: bytes, start: int, field: slice, value: bytes) -> bytes:
    """Changes a field of the header at `start` and corrects its checksum."""
    header = bytearray(data[start : start + 512])
    header[field] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:start] + bytes(header) + data[start + 512 :]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(b"\xff" * 11 + b"\xfe", "size of a member is not a number", id="negative"),
        pytest.param(b"0000000zzzz\0", "size of a member is not a number", id="no-octal"),
        pytest.param(b"\x80" + b"\xff" * 11, "is cut short", id="huge"),
    ],
)
def test_header_with_a_wrong_size_is_an_error(value: bytes, message: str) -> None:
    with pytest.raises(TarError, match=message):
        read_all(change_header(WHOLE, 1536, slice(124, 136), value))


@pytest.mark.parametrize(
    "record",
    [b"12 path=x", b"99 path=x\n", b"path=x\n", b"9 path=xy\n", b"0 path=x\n", b"10 path-x\n", b"16 size=-5000000\n"],
)
def test_broken_pax_header_is_an_error(record: bytes) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    data = header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + WHOLE
    with pytest.raises(TarError, match=r"a pax header is broken|expected a number of bytes"):
        read_all(data)


def test_long_name_without_a_member_is_an_error() -> None:
    data = make({LONG: b""}, tarfile.GNU_FORMAT)
    with pytest.raises(TarError, match="long name belongs to no member at byte offset 1024"):
        read_all(data[:1024] + bytes(1024))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_mutated_tars_give_members_inside_the_file_or_an_error(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    mutated = bytearray(make({"a.jpg": b"x" * 600, LONG: b"y" * 10, "käse.jpg": b"", "b.cls": b"7"}, format))
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        mutated[position] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):  # a checksum that is right, so that what is behind it is looked at
            start = position // 512 * 512
            mutated[:] = change_header(bytes(mutated), start, slice(0, 0), b"")
    cut = bytes(mutated[: data.draw(st.integers(0, len(mutated)))])
    try:
        found = read_all(cut)
    except TarError as e:
        assert 0 <= e.offset <= len(cut)
        return
    assert all(0 <= each.offset <= each.offset + each.size <= len(cut) for each in found if each.kind == "file")
