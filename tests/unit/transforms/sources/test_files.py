from __future__ import annotations

import bisect
import errno
import functools
import itertools
import os
import pathlib
import random
import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.sources import files, image_source
from imagebeam.transforms.sources.files import FilesSource
from tests import error_texts, image_sets, spread_rows, written_files
from tests.listed_bucket import Bucket

JPEG = image_sets.make_image(1)
PNG = image_sets.make_image(2, "PNG")


class Found(NamedTuple):
    """Everything in a source, in sorted order."""

    refs: dict[str, elements.ImageRef]
    rejects: dict[str, elements.Reject]
    skipped: dict[str, int]
    problems: list[str]
    num_listed: int  # ranges and folders


def gather(source: FilesSource) -> Found:
    """Lists a source at once and a folder at a time, which must find the same."""
    at_once, by_folder = gather_in(source, recursive=True), gather_in(source, recursive=False)
    assert at_once[:4] == by_folder[:4]
    return at_once


def gather_in(source: FilesSource, recursive: bool) -> Found:
    waiting, listings, num_listed = [source.start()], list[image_source.Listing](), 0
    while waiting:
        num_listed += 1
        for found in source.list_directory(waiting.pop(), recursive):
            if isinstance(found, files.Directory):
                waiting.append(found)
            else:
                listings.append(found)
    refs, rejects, skipped, problems = spread_rows.gather(listings)
    assert len(refs) == len({ref.key for ref in refs})
    by_key = {ref.key: ref for ref in refs}
    return Found(by_key, {reject.key: reject for reject in rejects}, skipped, sorted(problems), num_listed)


def write(root: pathlib.Path, *paths: str, data: bytes = JPEG) -> None:
    written_files.write(root, dict.fromkeys(paths, data))


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


ODD_NAMES = (
    *("a b.jpg", " .jpg", "line\nbreak\r.jpg", "ünï \N{CAT FACE}.jpg", "e\u0301.jpg", "é" * 125 + "x.jpg"),
    *(os.fsdecode(b"caf\xe9\xff.jpg"), "*?[a].jpg", "back\\slash'\".jpg", "%20#?x=1.jpg", "gs:.jpg", "-rf.jpg"),
    *("two..jpg", "UPPER.JPG", "no-extension", "unknown.extension"),
)


def test_image_of_any_name_is_found_and_readable(root: pathlib.Path) -> None:
    names = [*ODD_NAMES, *(f"a folder/{name}" for name in ODD_NAMES)]
    write(root, *names)
    found = gather(FilesSource(str(root)))
    assert sorted(found.refs) == sorted(names)
    for key, ref in found.refs.items():
        assert storage.storage_of(ref.uri).read(ref.uri) == JPEG
        assert os.path.relpath(ref.uri, root) == key
    assert (found.rejects, found.skipped, found.problems) == ({}, {}, [])


def test_other_files_are_skipped_and_counted(root: pathlib.Path) -> None:
    write(root, "notes.txt", "labels", data=b"some text")
    write(root, "empty", data=b"")
    write(root, ".hidden.jpg", ".thumbnails/1.jpg", ".thumbnails/2.jpg", "a/.DS_Store")
    write(root, "$RECYCLE.BIN/S-1-5-21/$R1.jpg", "lost+found/#12.jpg")
    write(root, "1.jpg")
    found = gather(FilesSource(str(root)))
    assert list(found.refs) == ["1.jpg"]
    assert found.skipped == {"non_image": 3, "hidden": 5}  # a hidden folder counts once, unseen
    assert (found.rejects, found.problems) == ({}, [])


def test_image_is_found_by_its_extension_whatever_it_holds_and_by_its_content(root: pathlib.Path) -> None:
    images = {"text.jpg": b"some text", "empty.PNG": b"", "cut.webp": b"RIFF"}
    images |= {name: image_sets.make_image(3, name) for name in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")}
    written_files.write(root, images)
    assert sorted(gather(FilesSource(str(root))).refs) == sorted(images)


def test_pictures_of_formats_that_are_not_read_are_counted_by_extension(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "a.TGA", "b.tga", "c.pcx", "tga", "d.txt", data=b"no signature")
    write(tmp_path, "e.tga")  # a JPEG under another name
    found = gather(FilesSource(str(tmp_path)))
    assert found.skipped == {"unread_tga": 2, "unread_pcx": 1, "non_image": 2}
    assert list(found.refs) == ["e.tga"]


def test_pipes_and_sockets_are_skipped_unopened(root: pathlib.Path) -> None:
    os.mkfifo(root / "pipe.jpg")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    found = gather(FilesSource(str(root)))
    assert (found.refs, found.rejects, found.skipped) == ({}, {}, {"special_file": 3})


# Links


def test_links_to_files_and_folders_are_followed(root: pathlib.Path) -> None:
    write(root.parent, "elsewhere/1.jpg")
    (root / "link.jpg").symlink_to("../elsewhere/1.jpg")
    (root / "folder").symlink_to("../elsewhere")
    (root / "again").symlink_to("../elsewhere")
    found = gather(FilesSource(str(root)))
    assert sorted(found.refs) == ["again/1.jpg", "folder/1.jpg", "link.jpg"]
    assert found.refs["link.jpg"].size == len(JPEG)
    assert found.skipped == {}


def test_loops_of_links_end(root: pathlib.Path) -> None:
    write(root, "a/1.jpg", "b/2.jpg")
    (root / "a/self").symlink_to(".")
    (root / "a/up").symlink_to("..")
    (root / "a/to-b").symlink_to("../b")
    (root / "b/to-a").symlink_to("../a")
    found = gather(FilesSource(str(root)))
    assert sorted(found.refs) == ["a/1.jpg", "a/to-b/2.jpg", "b/2.jpg", "b/to-a/1.jpg"]
    assert found.skipped == {"link_loop": 6}
    assert (found.rejects, found.problems) == ({}, [])


def test_broken_link_with_the_extension_of_an_image_is_rejected(root: pathlib.Path) -> None:
    (root / "gone.jpg").symlink_to("nothing")
    (root / "loop.png").symlink_to("loop.png")
    (root / "gone").symlink_to("nothing")
    found = gather(FilesSource(str(root)))
    detail = "a broken link; repair or remove it"
    assert found.rejects == {
        name: elements.Reject(name, f"{root}/{name}", "list", Reason.NOT_FOUND, detail)
        for name in ("gone.jpg", "loop.png")
    }
    assert (found.refs, found.skipped) == ({}, {"special_file": 1})


# Folders that cannot be listed


GRANT = "grant read access, or leave it out with source.include"


class BrokenScan:
    """Yields one entry of a folder, then raises."""

    def __init__(self, entries: Iterator[os.DirEntry[str]]):
        self._entries = entries

    def __enter__(self) -> BrokenScan:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        yield next(self._entries)
        raise OSError(5, "Input/output error")


def test_folder_that_cannot_be_listed_is_a_problem_and_the_rest_is_listed(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a/1.jpg", "locked/2.jpg", "half/3.jpg", "b/4.jpg")
    scandir = os.scandir

    def scan(uri: str) -> object:
        if uri == f"{root}/locked":
            raise PermissionError(13, "Permission denied", uri)
        return BrokenScan(scandir(uri)) if uri == f"{root}/half" else scandir(uri)

    monkeypatch.setattr(os, "scandir", scan)
    found = gather(FilesSource(str(root)))
    assert sorted(found.refs) == ["a/1.jpg", "b/4.jpg", "half/3.jpg"]
    remedy = "so the images in it would be lost: grant read access or move it away"
    assert found.problems == [
        f"folder '{root}/half' cannot be listed (Input/output error), {remedy}",
        f"folder '{root}/locked' cannot be listed (Permission denied), {remedy}",
    ]


def fail_to_read(monkeypatch: pytest.MonkeyPatch, end: str, error: OSError) -> None:
    """Lets reads of files whose names end so raise an error."""
    read = storage.LocalStorage.read

    def read_or_fail(self: storage.LocalStorage, uri: str, *more: int) -> bytes:
        if uri.endswith(end):
            raise error
        return read(self, uri, *more)

    monkeypatch.setattr(storage.LocalStorage, "read", read_or_fail)


def test_unreadable_file_without_the_extension_of_an_image_is_rejected(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "named.jpg", "below/unnamed", "readable")
    for error, reason, remedy in [
        (PermissionError(errno.EACCES, "Permission denied"), Reason.UNREADABLE, GRANT),
        (OSError(errno.EIO, "Input/output error"), Reason.UNREADABLE, GRANT),
        (FileNotFoundError(errno.ENOENT, "no x"), Reason.NOT_FOUND, "run again when nothing removes files there"),
    ]:
        fail_to_read(monkeypatch, "unnamed", error)
        found = gather(FilesSource(str(root)))
        assert (sorted(found.refs), found.skipped) == (["named.jpg", "readable"], {})
        key = "below/unnamed"
        detail = f"cannot be read ({error.strerror}), so it is unknown whether it is an image: {remedy}"
        assert found.rejects == {key: elements.Reject(key, f"{root}/{key}", "list", reason, detail)}


def test_fault_while_a_file_is_sniffed_ends_the_listing(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "named.jpg", "below/unnamed")
    for error in (storage.UnavailableError(errno.EIO, "no answer"), OSError(errno.EMFILE, "Too many open files")):
        fail_to_read(monkeypatch, "", error)
        for recursive in (True, False):
            with pytest.raises(OSError, match=error.strerror):
                gather_in(FilesSource(str(root)), recursive)


def test_fault_while_a_folder_is_listed_ends_the_listing(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[storage.Entry]:
        raise storage.UnavailableError(errno.EIO, "no answer")

    monkeypatch.setattr(storage.LocalStorage, "list_directory", fail)
    with pytest.raises(storage.UnavailableError, match="no answer"):
        gather(FilesSource(str(root)))


# Include globs and the output's folder


TREE = ("1.jpg", "a/2.jpg", "a/3.png", "a/b/4.jpg", "c/b/5.jpeg", "c/line\nbreak/6.jpg")


def test_include_lists_what_its_globs_match(root: pathlib.Path) -> None:
    write(root, *TREE)
    (root / "gone.gif").symlink_to("nothing")  # left out as other files are
    for include, expected in [
        (("**/*.[jp]*",), TREE),
        (("*.[jp]*",), ("1.jpg",)),  # one star is one level
        (("*.jpg",), ("1.jpg",)),
        (("**/*.jpg",), ("1.jpg", "a/2.jpg", "a/b/4.jpg", "c/line\nbreak/6.jpg")),
        (("a/**",), ("a/2.jpg", "a/3.png", "a/b/4.jpg")),
        (("**/b/*",), ("a/b/4.jpg", "c/b/5.jpeg")),
        (("*/[0-9].jp*g",), ("a/2.jpg",)),
        (("a/?.png", "1.jpg"), ("1.jpg", "a/3.png")),
        (("c/*/6.jpg",), ("c/line\nbreak/6.jpg",)),
        (("A/*",), ()),  # case counts
        ((), ()),
    ]:
        found = gather(FilesSource(str(root), include))
        assert sorted(found.refs) == sorted(expected)
        assert (found.rejects, found.skipped) == ({}, {"not_included": 1 + len(TREE) - len(expected)})


def test_include_of_a_wrong_glob_is_a_config_error() -> None:
    for glob in ("a**", "x/**.jpg"):
        with error_texts.raises("glob-invalid"):
            FilesSource("/x", (glob,))


@given(st.text("ab*?[]!-\\/.^$\n", max_size=12))
def test_include_of_any_text_is_a_glob_or_a_config_error(glob: str) -> None:
    try:
        FilesSource("/x", (glob,))
    except errors.ConfigError as e:
        assert repr(glob) in str(e)


def test_output_folder_below_the_root_is_left_out(root: pathlib.Path) -> None:
    write(root, "1.jpg", "out/2.jpg", "output/3.jpg", "a/out/4.jpg")
    found = gather(FilesSource(str(root), exclude=f"{root}/out"))
    assert sorted(found.refs) == ["1.jpg", "a/out/4.jpg", "output/3.jpg"]
    assert found.skipped == {"output_folder": 1}


# One listing or many


def test_not_recursive_yields_the_folders_it_did_not_enter(root: pathlib.Path) -> None:
    write(root, "1.jpg", "a/2.jpg", "a/b/3.jpg", ".c/4.jpg")
    source = FilesSource(str(root))
    found = list(source.list_directory(source.start(), recursive=False))
    (below,) = [item for item in found if isinstance(item, files.Directory)]
    identities = tuple((status.st_dev, status.st_ino) for status in (root.stat(), (root / "a").stat()))
    assert below == files.Directory("a", identities)


def test_many_images_are_split_into_several_listings(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 3)
    image_sets.write_folder(root, ("cat", "dog"), 5)
    (root / "gone.jpg").symlink_to("nothing")
    source = FilesSource(str(root))
    sizes = [item.num_refs + len(item.rejects) for item in source.list_directory(source.start(), True)]
    assert sizes == [3, 3, 3, 2]
    assert len(gather(source).refs) == 10


def test_empty_folder_gives_one_empty_listing_and_a_missing_one_raises(root: pathlib.Path) -> None:
    source = FilesSource(str(root))
    (found,) = source.list_directory(source.start(), recursive=True)
    assert found == image_source.Listing(elements.pack_refs([]), 0, (), {}, ())
    with pytest.raises(FileNotFoundError, match="missing"):
        FilesSource(f"{root}/missing").start()


# A glob as the input's address


def test_split_glob_returns_the_folder_and_the_glob_below_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a[1]*").mkdir()
    for uri, expected in [
        (f"{tmp_path}/a[1]*", (f"{tmp_path}/a[1]*", files.EVERYTHING)),  # the folder is there
        ("/data", ("/data", files.EVERYTHING)),
        ("/data/*.jpg", ("/data", ("*.jpg",))),
        ("/data/*/x/?.jpg", ("/data", ("*/x/?.jpg",))),
        ("/data/a b/[ab]/**/*.jpg", ("/data/a b", ("[ab]/**/*.jpg",))),
        ("/*.jpg", ("/", ("*.jpg",))),
        ("/data/**", ("/data", ("**",))),
        ("/data/x]y{z}", ("/data/x]y{z}", files.EVERYTHING)),
    ]:
        assert files.split_glob(uri) == expected
    with pytest.raises(errors.ConfigError, match="scheme 'nfs' is not known"):
        files.split_glob("nfs://host/*.jpg")


# --- ranges -----------------------------------------------------------------------------------------------------------


# Few characters, so that names share beginnings; among them the neighbours of the slash, and of the surrogates.
NAMES = st.text(st.sampled_from("ab./0 \x01\ud7ff\ue000\U0010ffff"), min_size=1, max_size=6)
PATHS = NAMES.map(lambda name: re.sub("/+", "/", name).strip("/")).filter(bool)
BOUNDS = st.text(st.sampled_from("ab.0\ud7ff\U0010ffff"), max_size=3)


@given(st.sets(PATHS), BOUNDS, BOUNDS, st.integers(1, 40))
def test_cut_yields_ascending_bounds_in_the_range(names: set[str], start: str, end: str, num_wanted: int) -> None:
    bucket = Bucket(sorted(names), 10)
    bounds = files.cut_names(lambda *bounds: bucket.first_name("stub://b", *bounds), start, end, num_wanted)
    assert bounds == sorted(set(bounds))
    assert all(bound > start and (not end or bound < end) and "/" not in bound for bound in bounds)
    for first, last in itertools.pairwise((start, *bounds, end)):  # no part is empty, unless all are
        assert not bounds or bucket.first_name("stub://b", first, last) is not None


def test_cut_makes_parts_that_are_small_beside_the_whole_with_few_requests() -> None:
    for names in [
        [f"{index:08d}.jpg" for index in range(5000)],  # numbers-with-zeros
        [f"img_{index}.jpg" for index in range(5000)],  # numbers
        [f"{random.Random(index).getrandbits(128):032x}.png" for index in range(5000)],  # hex
        [f"{'x' * 60}{index:05d}-{'y' * 60}" for index in range(5000)],  # long-shared-beginning
    ]:
        bucket = Bucket(names, 1000)
        bounds = files.cut_names(functools.partial(bucket.first_name, "stub://b"), "", "", 32)
        sizes = Counter(bisect.bisect_right(bounds, name) for name in names)
        assert len(bounds) >= 31
        assert bucket.num_probes <= 32 * 11
        assert max(sizes.values()) < len(names) / 8


def list_everything(bucket: Bucket, recursive: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """Returns the keys that are found, and the number of ranges and folders that were listed."""
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    found = gather_in(FilesSource("stub://b"), recursive)
    assert not found.problems
    return list(found.refs), found.num_listed


@given(st.sets(PATHS, max_size=80), st.integers(1, 4), st.booleans(), st.booleans())
def test_every_object_is_listed_once_however_a_folder_is_cut(
    names: set[str], page_entries: int, early_folders: bool, recursive: bool
) -> None:
    names = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    names = {f"{name}.jpg" for name in names if not any(part.startswith(".") for part in name.split("/"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PAGES_AND_RANGES", ((1, 3), (1, 4)))
        keys, _ = list_everything(Bucket(sorted(names), page_entries, early_folders), recursive, patch)
    assert sorted(keys) == sorted(names)


def test_objects_behind_two_slashes_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["//1.jpg", "a//2.jpg", "a//b/3.jpg", "a/4.jpg", "c/a///5.jpg"]
    monkeypatch.setattr(storage, "storage_of", lambda _: Bucket(names, 2))
    found = gather(FilesSource("stub://b"))
    assert list(found.refs) == ["a/4.jpg"]
    assert [problem.split(": ")[0] for problem in found.problems] == [
        "folder stub://b//", "folder stub://b/a//", "folder stub://b/c/a//"
    ]  # fmt: skip


def test_flat_folder_is_cut_into_ranges_and_a_small_one_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Bucket([f"flat/{index:07d}.jpg" for index in range(30_000)], 100)
    keys, num_listed = list_everything(large, False, monkeypatch)
    assert len(keys) == len(set(keys)) == 30_000
    assert num_listed > 10
    assert large.num_pages + large.num_probes < 300 + 200
    small = Bucket([f"flat/{index:07d}.jpg" for index in range(100)], 100)
    assert len(list_everything(small, False, monkeypatch)[0]) == 100
    assert (small.num_pages, small.num_probes) == (2, 0)  # the root, and the folder


def test_objects_created_during_the_listing_hide_and_repeat_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAGES_AND_RANGES", ((1, 4),))
    bucket = Bucket([f"{index:04d}.jpg" for index in range(0, 2000, 2)], 20)
    created = iter(range(1, 2000, 2))
    ask = bucket.first_name

    def create_and_ask(uri: str, start: str, end: str) -> str | None:
        bucket.names = sorted([*bucket.names, *(f"{next(created):04d}.jpg" for _ in range(3))])
        return ask(uri, start, end)

    monkeypatch.setattr(bucket, "first_name", create_and_ask)
    keys, _ = list_everything(bucket, False, monkeypatch)
    assert len(keys) == len(set(keys))
    assert {f"{index:04d}.jpg" for index in range(0, 2000, 2)} <= set(keys)
