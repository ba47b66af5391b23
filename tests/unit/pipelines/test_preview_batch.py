from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import PIL.Image
import pytest

import imagebeam
from imagebeam import errors, features
from imagebeam.pipelines import preview_batch
from tests import datasets, image_sets
from tests.unit.imagebeam.reader import written

tf = pytest.importorskip("tensorflow")

PAPER = (255, 255, 255)


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    """Ten pictures of two classes."""
    return make(tmp_path_factory.mktemp("pets"))


def make(folder: pathlib.Path, labels: tuple[str, ...] = ("cat", "dog"), **sections: Any) -> imagebeam.ImageDataset:
    image_sets.write_folder(folder / "in", labels, per_label=10 // len(labels))
    datasets.make(folder / "in", folder / "pets", **sections)
    return imagebeam.open_dataset(str(folder / "pets"))


def make_with_targets(folder: pathlib.Path, kind: str, *targets: str) -> imagebeam.ImageDataset:
    rows = ["image,target"]
    for index, target in enumerate(targets):
        (folder / f"{index}.jpg").write_bytes(image_sets.make_image(index))
        rows.append(f"{index}.jpg,{target}")
    (folder / "table.csv").write_text("\n".join(rows))
    label = {"by": "column", "column": "target", "type": kind}
    datasets.make(folder / "table.csv", folder / "out", source={"by": "manifest"}, label=label)
    return imagebeam.open_dataset(str(folder / "out"))


def captions_of(dataset: imagebeam.ImageDataset, count: int) -> list[str]:
    batch = next(dataset.as_tf("train", count, features=("image/key",), num_epochs=1).as_numpy_iterator())
    return preview_batch._captions(dataset, batch, "image/key")


def is_blank(sheet: PIL.Image.Image, left: int, top: int, width: int, height: int) -> bool:
    return sheet.crop((left, top, left + width, top + height)).getcolors() == [(width * height, PAPER)]


# --- the file --------------------------------------------------------------------------------------------------------


def test_images_are_those_of_a_batch(pets: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "out.png")
    assert preview_batch.write_preview(pets, "train", path, count=7, image_size=120, seed=3) == 7
    batch = next(pets.as_tf("train", 7, image_size=120, seed=3).as_numpy_iterator())["image"]
    layout = preview_batch.SheetLayout(7, 120, 120)
    with PIL.Image.open(path) as sheet:
        assert (sheet.format, sheet.mode) == ("PNG", "RGB")
        assert sheet.size == (layout.sheet_width, layout.sheet_height(1)) == (536, 345)
        pixels = np.asarray(sheet)
    for index, expected in enumerate(batch):
        left, top = layout.corner(index, 1)
        np.testing.assert_array_equal(pixels[top : top + 120, left : left + 120], expected)


def test_preview_shows_all_of_a_split_that_has_fewer(pets: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    assert preview_batch.write_preview(pets, "train", str(tmp_path / "out.png"), count=32, image_size=16) == 10
    assert preview_batch.write_preview(pets, "train[:20%]", str(tmp_path / "out.png"), count=32, image_size=16) == 2


def test_preview_is_the_same_for_the_same_seed_alone(pets: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    def content(**options: Any) -> bytes:
        preview_batch.write_preview(pets, "train", str(tmp_path / "out.png"), image_size=32, **options)
        return (tmp_path / "out.png").read_bytes()

    first = content()
    assert content() == first
    assert content(seed=1) != first
    assert content(crop="center") != first


@pytest.mark.parametrize("path", ["out.jpg", "out", "png"])
def test_file_that_is_not_a_png_is_refused(pets: imagebeam.ImageDataset, path: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=rf"the preview is a PNG, and '{path}' does not end in .png: give such"
    ):
        preview_batch.write_preview(pets, "train", path)


def test_image_that_is_broken_is_named(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    shard = next((tmp_path / "pets").glob("*.tfrecord"))
    broken = bytearray(shard.read_bytes())
    broken[200] ^= 1
    shard.write_bytes(broken)
    with pytest.raises(errors.ExampleError, match=r"record 0 of shard .* does not match"):
        preview_batch.write_preview(dataset, "train", str(tmp_path / "out.png"))
    assert not (tmp_path / "out.png").exists()


# --- captions --------------------------------------------------------------------------------------------------------


def test_caption_is_the_name_of_the_class(pets: imagebeam.ImageDataset) -> None:
    batch = next(pets.as_tf("train", 10, features=("image/class/text",), num_epochs=1).as_numpy_iterator())
    assert preview_batch._captions(pets, batch, None) == [text.decode() for text in batch["image/class/text"]]


def test_class_whose_name_the_font_lacks_has_its_id_too(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path, labels=("Pâté", "кот", "wh?t"))
    assert set(captions_of(dataset, 9)) == {"Pate", "2: ???", "wh?t"}
    assert preview_batch.write_preview(dataset, "train", str(tmp_path / "out.png")) == 9


@pytest.mark.parametrize(
    ("kind", "targets", "captions"),
    [
        pytest.param("int", ("7", "-12345678"), {"7", "-12345678"}, id="int"),
        pytest.param("float", ("0.25", "1234567.5"), {"0.25", "1.235e+06"}, id="float"),
    ],
)
def test_caption_is_the_target(tmp_path: pathlib.Path, kind: str, targets: tuple[str, ...], captions: set[str]) -> None:
    assert set(captions_of(make_with_targets(tmp_path, kind, *targets), 2)) == captions


def test_caption_without_labels_is_the_end_of_the_key(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path, label={"by": "none"})
    assert {"0.jpg", "4.png"} <= set(captions_of(dataset, 10))
    assert preview_batch.write_preview(dataset, "train", str(tmp_path / "out.png")) == 10


def test_dataset_with_neither_labels_nor_keys_has_no_captions(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path, label={"by": "none"}, features={"image/key": None})
    assert preview_batch.write_preview(dataset, "train", str(tmp_path / "out.png")) == 10
    assert preview_batch._captions(dataset, {"image": np.zeros([3, 2, 2, 3])}, None) == ["", "", ""]


def test_caption_names_every_class_of_a_picture(tmp_path: pathlib.Path) -> None:
    examples = [{**written.jpeg_values(index), features.LABEL: tuple(range(index))} for index in range(4)]
    dataset = written.write(tmp_path / "out", (*written.IMAGE, written.MANY_LABELS), examples, labels=["a", "b", "c"])
    assert set(captions_of(dataset, 4)) == {"", "a", "a, b", "a, b, c"}
    assert preview_batch.write_preview(dataset, "train", str(tmp_path / "out.png")) == 4


def test_boxes_are_drawn_only_on_whole_images(tmp_path: pathlib.Path) -> None:
    box = dict(zip(written.BOX_KEYS, ((0.25, 0.0), (0.75, 0.1), (0.6, 0.0), (1.0, 0.1))))  # a second one is small
    examples = [{**written.jpeg_values(0), **box}, {**written.jpeg_values(0), **dict.fromkeys(box, ())}]
    dataset = written.write(tmp_path / "out", (*written.IMAGE, *written.BOXES), examples)
    pixels = {}
    for crop in ("squash", "center"):
        preview_batch.write_preview(dataset, "train", str(tmp_path / "out.png"), crop=crop, image_size=120)
        with PIL.Image.open(tmp_path / "out.png") as sheet:
            pixels[crop] = np.asarray(sheet)
    assert not (pixels["center"] == preview_batch._BOX).all(axis=2).any()
    layout = preview_batch.SheetLayout(2, 120, 120)
    marked = []
    for index in range(2):
        left, top = layout.corner(index, 1)
        marked.append((pixels["squash"][top : top + 120, left : left + 120] == preview_batch._BOX).all(axis=2))
    boxed, blank = sorted(marked, key=np.count_nonzero, reverse=True)
    assert not blank.any()
    rows, columns = np.nonzero(boxed[40:])
    assert (columns.min(), columns.max(), rows.min() + 40, rows.max() + 40) == (30, 89, 71, 119)
    assert not boxed[75:116, 34:86].any()  # an outline alone
    assert boxed[:40].any()


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        pytest.param("tabby cat, 'C' (2)", "tabby cat, 'C' (2)", id="ascii"),
        pytest.param("São Paulo, Ångström", "Sao Paulo, Angstrom", id="accents-go"),
        pytest.param("Ⅷ", "VIII", id="taken-apart"),
        pytest.param("кот 猫 😀", "??? ? ?", id="not-in-the-font"),
        pytest.param("a\nb\x1b", "a\\nb\\x1b", id="control-characters"),
        pytest.param("“quoted”… ™", "“quoted”… ™", id="in-the-font"),
    ],
)
def test_text_has_only_characters_of_the_font(text: str, drawn: str) -> None:
    assert preview_batch.drawable(text) == drawn


# --- the sheet -------------------------------------------------------------------------------------------------------


def test_caption_is_drawn_under_its_picture_and_heading_above() -> None:
    images = np.zeros([3, 112, 112, 3], np.uint8)
    sheet = preview_batch.draw_sheet(images, ["cat", "", "dog"], "pets, train")
    layout = preview_batch.SheetLayout(3, 112, 112)
    under = [(left, top + 112, 112, layout.line_height) for left, top in (layout.corner(i, 1) for i in range(3))]
    assert [is_blank(sheet, *box) for box in under] == [False, True, False]
    assert not is_blank(sheet, 16, 16, 100, layout.line_height)
    assert is_blank(sheet, 0, 0, sheet.width, 16)
    assert is_blank(sheet, 0, sheet.height - 12, sheet.width, 12)
    other = preview_batch.draw_sheet(images, ["cow", "", "dog"], "pets, train")
    left, top, width, height = under[0]
    box = (left, top, left + width, top + height)
    assert sheet.crop(box).tobytes() != other.crop(box).tobytes()


def test_long_caption_stays_under_its_picture() -> None:
    images = np.zeros([2, 112, 112, 3], np.uint8)
    sheet = preview_batch.draw_sheet(images, ["a very long name of a class that goes on and on", "x"], "")
    left, top = preview_batch.SheetLayout(2, 112, 112).corner(0, 1)
    assert is_blank(sheet, left + 112, top + 112, 7, 20)  # the gap to the next one


def test_text_that_is_cut_ends_in_an_ellipsis() -> None:
    font = preview_batch._font(14)
    assert preview_batch._cut("short", font, 100) == "short"
    cut = preview_batch._cut("golden retriever puppy", font, 100)
    assert cut == "golden retriev…"
    assert font.getlength(cut) <= 100


def test_long_heading_takes_more_lines() -> None:
    images = np.zeros([1, 112, 112, 3], np.uint8)
    one, three = (preview_batch.draw_sheet(images, ["x"], "eleven chars " * words) for words in (1, 12))
    assert one.width == three.width == 480
    assert three.height - one.height == 2 * preview_batch.SheetLayout(1, 112, 112).line_height
    font = preview_batch._font(14)
    assert preview_batch._wrap("one two", font, 30) == ["one", "two"]
    assert preview_batch._wrap("W" * 99, font, 60)[0].endswith("…")


def test_small_pictures_are_drawn_larger() -> None:
    images = np.arange(2 * 28 * 28 * 3, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28, 3)
    sheet = np.asarray(preview_batch.draw_sheet(images, ["0", "1"], "digits"))
    layout = preview_batch.SheetLayout(2, 28, 28)
    assert layout.scale == 4
    left, top = layout.corner(1, 1)
    np.testing.assert_array_equal(sheet[top : top + 112 : 4, left : left + 112 : 4], images[1])
    np.testing.assert_array_equal(sheet[top + 3 : top + 112 : 4, left + 3 : left + 112 : 4], images[1])


@pytest.mark.parametrize(("num_pictures", "columns"), [(1, 1), (2, 2), (3, 3), (5, 4), (8, 4), (32, 8), (100, 15)])
def test_sheet_is_about_twice_as_wide_as_high(num_pictures: int, columns: int) -> None:
    assert preview_batch.SheetLayout(num_pictures, 224, 224).columns == columns
