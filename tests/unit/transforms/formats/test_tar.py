from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import subprocess
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import tar
from imagebeam.transforms.formats.tar import Member, TarError
from imagebeam.transforms.packed import unpacked_content
from imagebeam.transforms.sources import table_rows
from tests import case_tables, image_sets, tars, written_files

JPEG = image_sets.make_image(1)
PNG = image_sets.make_image(2, "PNG")


def list_tar(folder: pathlib.Path, **options: Any) -> tars.Listed:
    return tars.list_all(tar.TarSource(str(folder), **options))


def test_members_with_one_stem_are_one_image_with_its_cells(tmp_path: pathlib.Path) -> None:
    members = []
    for number in range(5):
        described = {"caption": f"no. {number}", "box": {"w": number, "all": [number, 2]}, "a.b": True}
        members += [
            (f"x/{number}.cls", b" %d\n" % number),
            (f"x/{number}.JPG" if number % 2 else f"x/{number}.png", JPEG if number % 2 else PNG),
            (f"x/{number}.txt", "häuser\n".encode()),
            (f"x/{number}.json", json.dumps(described).encode()),
            (f"x/{number}.seg.png", b"not asked for"),
        ]
    tars.write_tar(tmp_path / "b" / "train-0001.tar", members)
    tars.write_tar(tmp_path / "a.tar", [("./0.jpg", JPEG), ("./0.cls", b"7"), ("./0.txt", b"t"), ("./0.json", b"{}")])
    fields = table_rows.RowFields(
        label="cls",
        split="split",
        group="__key__",
        columns=(
            table_rows.Column("txt", "bytes"),
            table_rows.Column("json.caption", "bytes", missing="default", default="none"),
            table_rows.Column("json.box.w", "int64", missing="default", default=-1),
            table_rows.Column("json.box.all", "float", many=True),
            table_rows.Column("__url__", "bytes"),
        ),
    )
    found = list_tar(tmp_path, fields=fields)
    assert (found.rejects, found.problems, found.skipped) == ([], [], {})
    first, *others = found.refs
    assert (first.key, first.label, first.split, first.group) == ("a.tar/0", "7", "", "./0")
    assert first.columns == (b"t", b"none", -1, (), b"a.tar")
    for number, ref in enumerate(others):
        assert ref.key == f"b/train-0001.tar/x/{number}"
        assert (ref.label, ref.split, ref.group, ref.position) == (str(number), "train", f"x/{number}", number + 1)
        url = b"b/train-0001.tar"
        assert ref.columns == ("häuser\n".encode(), f"no. {number}".encode(), number, (float(number), 2.0), url)
        assert tars.read_ref(ref) == (JPEG if number % 2 else PNG)
        assert ref.size == ref.length == len(tars.read_ref(ref))
        assert ref.version == (tmp_path / "b" / "train-0001.tar").stat().st_mtime_ns


BAD_ROW, BAD_VALUE = Reason.BAD_ROW, Reason.BAD_VALUE
A = ("a.jpg", JPEG)


def test_stem_without_exactly_one_image_is_rejected(tmp_path: pathlib.Path) -> None:
    for members, reason, detail in [
        ([("a.cls", b"1")], BAD_ROW, "'a' of TAR at byte offset 3072: no image among"),  # no-image
        ([A, ("a.png", PNG)], BAD_ROW, "2 images with one stem, expected one: 'a.jpg', 'a.png'"),  # two
        ([("cat.0.jpg", JPEG), ("cat.1.jpg", JPEG)], BAD_ROW, "'cat.0.jpg', 'cat.1.jpg'"),  # dots
        ([("bare", JPEG)], BAD_ROW, r"'bare'; members of one example"),  # image-without-extension
        ([A, ("a.json", b"{")], BAD_ROW, ".json is not JSON"),  # bad-json
        ([A, ("a.json", b'{"x": "\\ud800"}')], BAD_ROW, "not JSON"),  # half-a-pair
        ([A, ("a.json", b"[1]")], BAD_ROW, "a list, expected an object"),  # list
        ([A, ("a.json", b'{"x": [1, 2]}')], BAD_VALUE, "'json.x' holds 2 values"),  # many
        ([A, ("a.json", b'{"x": {"y": 2}}')], BAD_VALUE, "holds a dict of its own"),  # object
        ([A, ("a.json", b"{}")], BAD_VALUE, "'json.x' is empty"),  # without-key
    ]:
        folder = case_tables.new_folder(tmp_path)
        good = ("good.jpg", JPEG), ("good.json", b'{"x": 5}')
        tars.write_tar(folder / "in" / "x.tar", [*good, *members])
        found = list_tar(folder / "in", fields=table_rows.RowFields(columns=(table_rows.Column("json.x", "int64"),)))
        assert [ref.key for ref in found.refs] == ["x.tar/good"]
        (reject,) = found.rejects
        assert (reject.reason, reject.stage, reject.uri) == (reason, "list", str(folder / "in" / "x.tar"))
        assert reject.key == "x.tar/" + members[0][0].partition(".")[0]
        assert str(folder / "in" / "x.tar") in reject.detail and "byte offset" in reject.detail
        assert re.search(detail.replace("TAR", re.escape(reject.uri)), reject.detail)


def test_stems_whose_members_are_not_consecutive_are_rejected(tmp_path: pathlib.Path) -> None:
    tars.write_tar(tmp_path / "x.tar", [("a.jpg", JPEG), ("b.jpg", JPEG), ("a.cls", b"1"), ("b.cls", b"2")])
    found = list_tar(tmp_path)
    assert [ref.key for ref in found.refs] == ["x.tar/a", "x.tar/b"]
    assert [reject.key for reject in found.rejects] == ["x.tar/a", "x.tar/b"]


def test_links_to_images_are_rejected(tmp_path: pathlib.Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        for name, kind in (("a.jpg", tarfile.SYMTYPE), ("b.jpg", tarfile.LNKTYPE)):
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, "elsewhere.jpg"
            file.addfile(header)
    found = list_tar(tmp_path)
    assert [reject.key for reject in found.rejects] == ["x.tar/a", "x.tar/b"]
    assert all("stored as a link, so its bytes are not contiguous" in reject.detail for reject in found.rejects)


def test_other_members_are_counted(tmp_path: pathlib.Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        for name, kind in (("folder", tarfile.DIRTYPE), ("pipe.jpg", tarfile.FIFOTYPE)):
            header = tarfile.TarInfo(name)
            header.type = kind
            file.addfile(header)
        for name in (".hidden.jpg", "d/.jpg", "README", "__meta__/x.jpg", "a.jpg"):
            header = tarfile.TarInfo(name)
            header.size = 4
            file.addfile(header, io.BytesIO(b"text"))
    (tmp_path / "notes.md").write_text("other")
    found = list_tar(tmp_path)
    assert [ref.key for ref in found.refs] == ["x.tar/a"]
    assert found.rejects == [] and found.skipped == {
        "directory": 1,
        "special_file": 1,
        "hidden": 2,
        "non_image": 1,
        "webdataset_meta": 1,
        "other_file": 1,
    }


@pytest.mark.parametrize("lost", [1, 600, 1024, 10240])
def test_tar_cut_short_is_a_problem_that_names_it(tmp_path: pathlib.Path, lost: int) -> None:
    tars.write_tar(tmp_path / "x.tar", [(f"{index}.jpg", JPEG) for index in range(20)])
    with tarfile.open(tmp_path / "x.tar") as file:
        end = max(each.offset_data + each.size for each in file)
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(data[: end - lost])
    found = list_tar(tmp_path)
    (problem,) = found.problems
    assert f"tar '{tmp_path}/x.tar': " in problem and "at byte offset" in problem and "cut short" in problem
    assert "fetch it again, or leave it out with source.include" in problem
    assert len(found.refs) < 20


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar"])
def test_tar_gz_is_listed_like_its_content(tmp_path: pathlib.Path, name: str) -> None:
    members = [each for index in range(9) for each in ((f"{index}.jpg", JPEG), (f"{index}.cls", b"3"))]
    tars.write_tar(tmp_path / name, members, "w:gz")
    found = list_tar(tmp_path, fields=table_rows.RowFields(label="cls"))
    assert [(ref.key, ref.label) for ref in found.refs] == [(f"{name}/{index}", "3") for index in range(9)]
    for ref in found.refs:
        assert unpacked_content.unpack(ref.uri, ref.version).read(ref.offset, ref.length) == JPEG


def test_gzip_and_names_that_disagree_are_a_problem(tmp_path: pathlib.Path) -> None:
    for name, content, message in [
        ("x.tgz", gzip.compress(bytes(10240))[:-9], "is gzip that was cut short"),  # tgz
        ("x.tar.gz", gzip.compress(bytes(10240))[:-9], "is gzip that was cut short"),  # cut
        ("x.tar.gz", b"plain", "is broken gzip"),  # no-gzip
        ("x.tar", gzip.compress(b"x" * 9999), "x.tar': "),  # gzip-of-no-tar
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / name).write_bytes(content)
        (problem,) = list_tar(folder).problems
        assert message in problem and name in problem


@pytest.mark.parametrize("image_bytes", [10, 5_000, 300_000])
def test_remote_tars_take_few_requests(image_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    content = tars.pack(
        (f"{index}.{kind}", b"5" * size) for index in range(200) for kind, size in (("jpg", image_bytes), ("cls", 3))
    )
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/tars", recursive=True)
    for shard in range(3):
        fsspec.filesystem("memory").pipe(f"/tars/{shard}.tar", content)
    requests = tars.count_requests(monkeypatch)
    found = tars.list_all(tar.TarSource("memory://tars", fields=table_rows.RowFields(label="cls")))
    assert (len(found.refs), found.rejects, found.problems) == (600, [], [])
    assert [ref.position for ref in found.refs] == list(range(600))
    assert [ref.key for ref in found.refs[:2]] == ["0.tar/0", "0.tar/1"]
    assert len(requests) <= 3 * (8 + len(content) // (3 << 20))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_mutated_tars_give_references_rejects_and_problems(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    members = [("a.jpg", JPEG), ("a.json", b'{"x": 1}'), ("b.jpg", JPEG), ("b.json", b'{"x": 2}'), ("c/é.png", PNG)]
    tars.write_tar(folder / "x.tar", members, format=data.draw(st.sampled_from([1, 2])))
    mutated = bytearray((folder / "x.tar").read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = mutated[: data.draw(st.integers(0, len(mutated)))] if data.draw(st.booleans()) else mutated
    (folder / "x.tar").write_bytes(cut)
    found = list_tar(folder, fields=table_rows.RowFields(columns=(table_rows.Column("json.x", "int64"),)))
    assert found.problems or len(found.refs) + len(found.rejects) >= 1
    assert all(0 <= ref.offset <= ref.offset + ref.length <= len(cut) for ref in found.refs)


# --- members of a tar -------------------------------------------------------------------------------------------------

LONG = "deep/" * 60 + "x" * 120 + ".jpg"


def read_all(data: bytes) -> list[Member]:
    return list(tar.read_members(lambda offset, length: data[offset : offset + length], len(data)))


def with_tarfile(data: bytes) -> list[tuple[str, int, int]]:
    """Reads the regular files of a tar with Python's tarfile: name, offset, size."""
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        return [(each.name, each.offset_data, each.size) for each in file if each.isreg()]


def test_members_are_equal_to_those_of_tarfile() -> None:
    for format, names in [
        (format, names)
        for format_id, format in (("ustar", 0), ("gnu", 1), ("pax", 2))
        for names_id, names in (
            ("short", ["a.jpg", "a.cls", "b/c.jpg"]),
            ("prefix", ["d" * 90 + "/" + "e" * 90 + ".jpg", "f.jpg"]),
            ("long", [LONG, "g.jpg", LONG + "2"]),
            ("not-ascii", ["käse.jpg", "日本.jpg", "\udcff\udcfe.jpg"]),
        )
        if (format_id, names_id) != ("ustar", "long")  # it has no such names
    ]:
        data = tars.pack([(name, os.urandom(3 + 700 * index)) for index, name in enumerate(names)], format=format)
        expected = with_tarfile(data)
        assert [(each.name, each.offset, each.size) for each in read_all(data)] == expected
        assert [name for name, _, _ in expected] == names


def test_tars_of_gnu_tar_are_read(tmp_path: pathlib.Path) -> None:
    names = ["x/1.jpg", "x/1.cls", LONG[:200] + "long.jpg"]
    folder = tmp_path / "in"
    written_files.write(folder, {name: name for name in names})
    os.link(folder / "x/1.jpg", folder / "x/2.jpg")
    os.link(folder / names[2], folder / f"{names[2]}.jpg")
    os.symlink("1.jpg", folder / "x/3.jpg")
    with open(folder / "x/hole.bin", "wb") as file:
        for start in range(0, 8):
            file.seek(start << 20)
            file.write(b"data")
    for format in ("gnu", "posix"):
        subprocess.run(
            ["tar", "--sparse", f"--format={format}", "--sort=name", "-cf", tmp_path / "x.tar", "-C", folder, "."],
            check=True,
        )
        data = (tmp_path / "x.tar").read_bytes()
        found = {each.name.removeprefix("./"): each for each in read_all(data)}
        for name in names:
            each = found[name]
            assert (each.kind, data[each.offset : each.offset + each.size]) == (tar.FILE, name.encode())
        for link, name in (("x/2.jpg", "x/1.jpg"), (f"{names[2]}.jpg", names[2])):  # stored once
            assert found[link] == found[name]._replace(name=found[link].name)
        assert found["x/3.jpg"].kind == tar.LINK
        assert (found["x/hole.bin"].kind, found["x/"].kind) == (tar.SPARSE, tar.DIRECTORY)


def test_joined_tars_are_all_read() -> None:
    data = tars.pack([("a.jpg", b"1")]) + tars.pack([("b.jpg", b"2")])
    assert [each.name for each in read_all(data)] == ["a.jpg", "b.jpg"]


def test_size_beyond_eleven_octal_digits_is_read() -> None:
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        header = tarfile.TarInfo("big.jpg")
        header.size = 20 << 30
        head = header.tobuf(format)
        end = len(head) + header.size

        def read(offset: int, length: int, head: bytes = head) -> bytes:
            return (head[offset : offset + length] if offset < len(head) else b"").ljust(length, b"\0")

        assert list(tar.read_members(read, end + 1024)) == [Member("big.jpg", tar.FILE, len(head), 20 << 30)]


WHOLE = tars.pack([("a.jpg", b"x" * 700), ("b.jpg", b"y" * 10)])  # headers at 0 and 1536, end at 2560


def change_header(data: bytes, start: int, field: slice, value: bytes) -> bytes:
    """Changes a field of the header at `start` and corrects its checksum."""
    header = bytearray(data[start : start + 512])
    header[field] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:start] + bytes(header) + data[start + 512 :]


def with_size(size: bytes) -> bytes:
    return change_header(WHOLE, 1536, slice(124, 136), size)


def with_pax(record: bytes) -> bytes:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    return header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + WHOLE


def test_broken_tar_is_an_error_with_its_offset() -> None:
    for data, offset, message in [
        (WHOLE[:1700], 1536, "cut short in a header, after 164 of 512 bytes"),  # in-header
        (WHOLE[:1000], 0, r"member 'a.jpg' of 700 bytes lacks 212"),  # in-data
        (WHOLE[:1536], 1536, "without the zeros that end a tar"),  # between-members
        (WHOLE[:1600] + b"\1" + WHOLE[1601:], 1536, "checksum of a member's header"),  # header-changed
        (b"no tar at all" * 100, 0, "this is not a tar"),  # other-file
        (WHOLE[:2560] + b"\0" * 9, 2569, "without the zeros that end a tar"),  # in-the-end
        (b"", 0, "without the zeros that end a tar"),  # empty
        (WHOLE + b"left over" * 60, len(WHOLE), "checksum of a member's header"),  # more-behind-the-end
        (with_size(b"\xff" * 11 + b"\xfe"), 1536, "size of a member is not a number"),  # negative
        (with_size(b"0000000zzzz\0"), 1536, "size of a member is not a number"),  # no-octal
        (with_size(b"\x80" + b"\xff" * 11), 1536, "is cut short"),  # huge
        (with_pax(b"12 path=x"), 512, "a pax header is broken"),  # pax-cut
        (with_pax(b"99 path=x\n"), 512, "a pax header is broken"),  # pax-too-long
        (with_pax(b"path=x\n"), 512, "a pax header is broken"),  # pax-without-length
        (with_pax(b"9 path=xy\n"), 512, "a pax header is broken"),  # pax-too-short
        (with_pax(b"0 path=x\n"), 512, "a pax header is broken"),  # pax-zero
        (with_pax(b"10 path-x\n"), 512, "a pax header is broken"),  # pax-without-value
        (with_pax(b"17 size=-5000000\n"), 1024, "expected a number of bytes"),  # pax-negative-size
        (
            tars.pack([(LONG, b"")], format=tarfile.GNU_FORMAT)[:1024] + bytes(1024),
            1024,
            "long name belongs to no member",
        ),  # long-name-without-a-member
    ]:
        with pytest.raises(TarError, match=message) as raised:
            read_all(data)
        assert raised.value.offset == offset
        assert str(raised.value).endswith(f"at byte offset {offset}")


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_mutated_tars_give_members_inside_the_file_or_an_error(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    members = [("a.jpg", b"x" * 600), (LONG, b"y" * 10), ("käse.jpg", b""), ("b.cls", b"7")]
    mutated = bytearray(tars.pack(members, format=format))
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


@pytest.mark.parametrize("name", ["a.tar", "a[1]*.tar"])
def test_file_that_is_given_is_read_without_a_look_beside_it(tmp_path: pathlib.Path, name: str) -> None:
    tars.write_tar(tmp_path / name, [("0.jpg", JPEG)])
    tars.write_tar(tmp_path / "a1.tar", [("1.jpg", JPEG)])
    (tmp_path / "notes.txt").write_text("x")
    given = tar.TarSource.find(str(tmp_path / name), ("**/*",), "")
    found = tars.list_all(tar.TarSource(*given))
    assert ([ref.uri for ref in found.refs], found.skipped) == ([str(tmp_path / name)], {})
    (tmp_path / name).unlink()
    assert tars.list_all(tar.TarSource(*given)).problems[0].startswith("there is no tar in")
    (tmp_path / name).mkdir()
    assert tars.list_all(tar.TarSource(*given)).problems[0].startswith("there is no tar in")
