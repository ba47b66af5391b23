from __future__ import annotations

import errno
import pathlib
from typing import Any

import pytest

from imagebeam import storage
from imagebeam.transforms.elements import ImageRef, Mask, Reason, Reject
from imagebeam.transforms.formats import masks
from imagebeam.transforms.formats.masks import Masks
from imagebeam.transforms.images import class_masks
from imagebeam.transforms.sources import files, image_source
from tests import case_tables, error_texts, image_sets, spread_rows, written_files

RULE = Masks(r"images/(?P<split>[^/]+)/(.*)\.jpg", r"masks/\g<split>/\2.png")
PICTURE = image_sets.make_image(1)
MASK = image_sets.make_image(2, "PNG", "L")


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    for split in ("train", "val"):
        written_files.write(tmp_path, {f"images/{split}/a b.jpg": PICTURE, f"masks/{split}/a b.png": MASK})
    return tmp_path


def listed(root: pathlib.Path, rule: Masks = RULE) -> tuple[list[ImageRef], list[Reject], dict[str, int]]:
    refs, rejects, skipped, problems = spread_rows.gather(files.FilesSource(str(root), masks=rule).list_all())
    assert not problems
    return sorted(refs), rejects, skipped


def test_each_image_is_listed_with_its_mask_and_split(root: pathlib.Path) -> None:
    (root / "readme.txt").write_text("x")
    refs, rejects, skipped = listed(root)
    expected = []
    for split in ("train", "val"):
        mask = root / "masks" / split / "a b.png"
        image = root / "images" / split / "a b.jpg"
        expected.append(
            ImageRef(
                f"images/{split}/a b.jpg",
                str(image),
                len(PICTURE),
                image.stat().st_mtime_ns,
                split=split,
                mask=Mask(str(mask), len(MASK), mask.stat().st_mtime_ns),
            )
        )
    assert (refs, rejects) == (expected, [])
    assert skipped == {"mask": 2, "not_included": 1}
    assert refs[0].num_bytes == len(PICTURE) + len(MASK)


def test_masks_are_looked_up_for_all_of_a_long_listing(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 2)
    for index in range(5):
        (root / f"images/train/{index}.jpg").write_bytes(PICTURE)
        (root / f"masks/train/{index}.png").write_bytes(MASK)
    refs, _, _ = listed(root)
    assert len(refs) == 7
    assert all(ref.mask and ref.mask.uri == ref.uri.replace("images", "masks").replace("jpg", "png") for ref in refs)


def test_missing_mask_is_a_reject_or_skipped(root: pathlib.Path) -> None:
    (root / "masks/val/a b.png").unlink()
    refs, rejects, _ = listed(root)
    assert [ref.split for ref in refs] == ["train"]
    detail = "there is no mask 'masks/val/a b.png'; add it, or change source.masks"
    uri = str(root / "images/val/a b.jpg")
    assert rejects == [Reject("images/val/a b.jpg", uri, "list", Reason.NOT_FOUND, detail)]
    refs, rejects, skipped = listed(root, Masks(RULE.image, RULE.mask, "skip"))
    assert (len(refs), rejects, skipped) == (1, [], {"mask": 1, "image_without_mask": 1})


def test_mask_that_is_a_folder_a_loop_or_outside_is_a_reject(root: pathlib.Path) -> None:
    for name in ("folder", "loop"):
        (root / f"images/train/{name}.jpg").write_bytes(PICTURE)
    (root / "masks/train/folder.png").mkdir()
    (root / "masks/train/loop.png").symlink_to("loop.png")
    _, rejects, _ = listed(root)
    assert {reject.key: (reject.reason, reject.detail) for reject in rejects} == {
        "images/train/folder.jpg": (
            Reason.UNREADABLE,
            "its mask 'masks/train/folder.png' is not a regular file (directory)",
        ),
        "images/train/loop.jpg": (
            Reason.UNREADABLE,
            "its mask 'masks/train/loop.png' cannot be read (Too many levels of symbolic links)",
        ),
    }
    outwards = Masks(r"images/(.*)/a( )b(\.)jpg", r"\3\3/\1.png")
    _, rejects, _ = listed(root, outwards)
    assert {reject.reason for reject in rejects} == {Reason.OUTSIDE_ROOT}


@pytest.mark.parametrize("error", [storage.UnavailableError("no answer"), OSError(errno.EMFILE, "no answer")], ids=repr)
def test_fault_of_the_storage_raises(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def refuse(self: Any, uri: str) -> storage.Entry:
        raise error

    monkeypatch.setattr(storage.LocalStorage, "stat", refuse)
    with pytest.raises(OSError, match="no answer"):
        list(RULE.add_masks(str(root), [ImageRef("images/train/a b.jpg", "x")]))


def test_masks_of_a_remote_storage_keep_the_order(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [ImageRef(f"images/train/{index}.jpg", "x") for index in range(100)]
    for index in range(0, 100, 2):
        (root / f"masks/train/{index}.png").write_bytes(MASK)
    monkeypatch.setattr(storage.LocalStorage, "is_local", False)
    found = list(RULE.add_masks(str(root), refs))
    assert [each.key for each in found if each is not None] == [ref.key for ref in refs]
    assert [isinstance(each, ImageRef) for each in found] == [index % 2 == 0 for index in range(100)]


# --- colors -----------------------------------------------------------------------------------------------------------


TWO = (("road", (128, 64, 128)), ("traffic light", (1, 2, 255)))


def read(root: pathlib.Path, colors: Any, **settings: Any) -> class_masks.MaskColors:
    if isinstance(colors, dict):
        colors = {name: tuple(color) for name, color in colors.items()}
    options = masks.Masks(image="(.*)", mask=r"\1.png", colors=colors, **settings)
    found = options.policy(str(root)).colors
    assert found is not None
    return found


def test_colors_are_read_in_the_order_of_the_file(tmp_path: pathlib.Path) -> None:
    for text in [
        "name,r,g,b\nroad,128,64,128\ntraffic light,1,2,255\n",  # class_dict.csv
        "\ufeffname, r, g, b\r\nroad, 128, 64, 128\r\n\r\ntraffic light, 1, 2, 255",  # with blanks
        "id,Label,Red,Green,Blue,eval\n0,road,128,64,128,1\n1,traffic light,1,2,255,0\n",
        "128 64 128\troad\n1 2 255\t\ttraffic light\n",  # label_colors.txt
        "128,64,128,road\n1,2,255,traffic light",  # csv without a header
        "# label:color_rgb:parts:actions\nroad:128,64,128::\ntraffic light:1,2,255::\n",  # cvat
        "road 128 64 128\ntraffic light 1 2 255\n",  # blanks
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / "colors.txt").write_text(text)
        assert read(folder, "colors.txt").colors == TWO
        assert read(folder / "elsewhere", str(folder / "colors.txt")).names == ("road", "traffic light")


def test_colors_of_the_config_keep_their_order_and_leave_out_what_is_ignored(tmp_path: pathlib.Path) -> None:
    found = read(tmp_path, {"road": [128, 64, 128], "traffic light": [1, 2, 255]}, ignore=("road",))
    assert (found.colors, found.names) == (TWO, ("traffic light",))
    other = read(tmp_path, {"traffic light": [1, 2, 255], "road": [128, 64, 128]}, ignore=("road",))
    assert other.as_json() != found.as_json()


def test_unusable_colors_are_refused(tmp_path: pathlib.Path) -> None:
    for colors, settings, code in [
        ({"a": [0, 0, 0], "b": [0, 0, 0]}, {}, "masks-color-twice"),
        ({}, {}, "masks-no-colors"),
        ({" ": [0, 0, 0]}, {}, "masks-name-twice"),
        ({"a": [0, 0, 0]}, {"ignore": ("b",)}, "masks-unknown-color"),
        ({str(n): [n % 256, n // 256, 0] for n in range(257)}, {}, "masks-too-many-classes"),
        ({str(n): [n % 256, n // 256, 0] for n in range(5000)}, {"bits": 16}, "masks-too-many-colors"),
        ("none.csv", {}, "file-unreadable"),
        ("latin.csv", {}, "file-not-utf8"),
        ("long.csv", {}, "file-too-large"),
        ("bad.csv", {}, "masks-bad-color"),
        ("high.csv", {}, "masks-bad-color"),
        ("twice.csv", {}, "masks-name-twice"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / "latin.csv").write_bytes(b"a,1,2,\xff")
        (folder / "long.csv").write_bytes(b"#" * (1 << 20) + b"#")
        (folder / "bad.csv").write_text("name,r,g,b\na,1,2,3\nsky,1,2\n")
        (folder / "high.csv").write_text("sky,1,2,256\n")
        (folder / "twice.csv").write_text("a,1,2,3\na,1,2,4\n")
        with error_texts.raises(code):
            read(folder, colors, **settings)
