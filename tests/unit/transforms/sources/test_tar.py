from __future__ import annotations

import contextlib
import gzip
import io
import json
import pathlib
import re
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.arrays import unpacked_content
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.sources import table_rows, tar
from tests import image_sets, tars

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
    assert (found.rejects, found.problems, found.passed_over) == ([], [], {})
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


@pytest.mark.parametrize(
    ("members", "reason", "detail"),
    [
        pytest.param(
            [("a.cls", b"1")], Reason.BAD_ROW, "'a' of TAR at byte offset 3072: no image among", id="no-image"
        ),
        pytest.param(
            [("a.jpg", JPEG), ("a.png", PNG), ("a.cls", b"1")],
            Reason.BAD_ROW,
            r"2 images with one stem, expected one: 'a.jpg', 'a.png', 'a.cls'",
            id="two-images",
        ),
        pytest.param([("cat.0.jpg", JPEG), ("cat.1.jpg", JPEG)], Reason.BAD_ROW, "'cat.0.jpg', 'cat.1.jpg'", id="dots"),
        pytest.param([("bare", JPEG)], Reason.BAD_ROW, r"'bare'; members of one example", id="image-without-extension"),
        pytest.param([("a.jpg", JPEG), ("a.json", b"{")], Reason.BAD_ROW, ".json is not JSON", id="bad-json"),
        pytest.param([("a.jpg", JPEG), ("a.json", b'{"x": "\\ud800"}')], Reason.BAD_ROW, "not JSON", id="half-a-pair"),
        pytest.param([("a.jpg", JPEG), ("a.json", b"[1]")], Reason.BAD_ROW, "a list, expected an object", id="list"),
        pytest.param(
            [("a.jpg", JPEG), ("a.json", b'{"x": [1, 2]}')], Reason.BAD_VALUE, "'json.x' holds 2 values", id="many"
        ),
        pytest.param(
            [("a.jpg", JPEG), ("a.json", b'{"x": {"y": 2}}')], Reason.BAD_VALUE, "holds a dict of its own", id="object"
        ),
        pytest.param([("a.jpg", JPEG), ("a.json", b"{}")], Reason.BAD_VALUE, "'json.x' is empty", id="without-key"),
    ],
)
def test_stem_without_exactly_one_image_is_rejected(
    tmp_path: pathlib.Path, members: list[tuple[str, bytes]], reason: Reason, detail: str
) -> None:
    good = ("good.jpg", JPEG), ("good.json", b'{"x": 5}')
    tars.write_tar(tmp_path / "in" / "x.tar", [*good, *members])
    found = list_tar(tmp_path / "in", fields=table_rows.RowFields(columns=(table_rows.Column("json.x", "int64"),)))
    assert [ref.key for ref in found.refs] == ["x.tar/good"]
    (reject,) = found.rejects
    assert (reject.reason, reject.stage, reject.uri) == (reason, "list", str(tmp_path / "in" / "x.tar"))
    assert reject.key == "x.tar/" + members[0][0].partition(".")[0]
    assert str(tmp_path / "in" / "x.tar") in reject.detail and "byte offset" in reject.detail
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
    assert found.rejects == [] and found.passed_over == {
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


def test_cells_that_no_image_has_are_a_problem(tmp_path: pathlib.Path) -> None:
    tars.write_tar(tmp_path / "x.tar", [("a.jpg", JPEG), ("a.cls", b"1")])
    (problem,) = list_tar(tmp_path, fields=table_rows.RowFields(label="class")).problems
    assert "has the member or key of .json 'class'; found are __key__, __url__, cls, jpg; set label.column" in problem


def test_folder_without_tars_is_a_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (problem,) = list_tar(tmp_path).problems
    assert "there is no tar in" in problem and "passed over: 1 other_file" in problem


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar"])
def test_tar_gz_is_listed_like_its_content(tmp_path: pathlib.Path, name: str) -> None:
    members = [each for index in range(9) for each in ((f"{index}.jpg", JPEG), (f"{index}.cls", b"3"))]
    tars.write_tar(tmp_path / name, members, "w:gz")
    found = list_tar(tmp_path, fields=table_rows.RowFields(label="cls"))
    assert [(ref.key, ref.label) for ref in found.refs] == [(f"{name}/{index}", "3") for index in range(9)]
    for ref in found.refs:
        assert unpacked_content.unpack(ref.uri, ref.version).read(ref.offset, ref.length) == JPEG


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("x.tgz", gzip.compress(bytes(10240))[:-9], "is gzip that was cut short", id="tgz"),
        pytest.param("x.tar.gz", gzip.compress(bytes(10240))[:-9], "is gzip that was cut short", id="cut"),
        pytest.param("x.tar.gz", b"plain", "is broken gzip", id="no-gzip"),
        pytest.param("x.tar", gzip.compress(b"x" * 9999), "x.tar': ", id="gzip-of-no-tar"),
    ],
)
def test_gzip_and_names_that_disagree_are_a_problem(
    tmp_path: pathlib.Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (problem,) = list_tar(tmp_path).problems
    assert message in problem and name in problem


def test_broken_link_to_a_tar_is_a_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.tar").symlink_to("nowhere.tar")
    (problem,) = list_tar(tmp_path).problems
    assert "is a broken link" in problem


@pytest.mark.parametrize("image_bytes", [10, 5_000, 300_000])
def test_remote_tars_take_few_requests(image_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    from imagebeam.storage import fsspec_files

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for index in range(200):
            for name, size in ((f"{index}.jpg", image_bytes), (f"{index}.cls", 3)):
                header = tarfile.TarInfo(name)
                header.size = size
                file.addfile(header, io.BytesIO(b"5" * size))
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/tars", recursive=True)
    for shard in range(3):
        fsspec.filesystem("memory").pipe(f"/tars/{shard}.tar", buffer.getvalue())
    requests = []
    read = fsspec_files.FsspecStorage._read

    def counted(self: Any, uri: str, offset: int, length: int, version: int) -> bytes:
        requests.append((uri, offset, length))
        return read(self, uri, offset, length, version)

    monkeypatch.setattr(fsspec_files.FsspecStorage, "_read", counted)
    found = tars.list_all(tar.TarSource("memory://tars", fields=table_rows.RowFields(label="cls")))
    assert (len(found.refs), found.rejects, found.problems) == (600, [], [])
    assert [ref.position for ref in found.refs] == list(range(600))
    assert [ref.key for ref in found.refs[:2]] == ["0.tar/0", "0.tar/1"]
    assert len(requests) <= 3 * (8 + len(buffer.getvalue()) // (3 << 20))


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
