from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import PIL.Image
import pytest

from imagebeam import example, features
from imagebeam.transforms.html_report import thumbnails
from imagebeam.transforms.images import object_masks
from tests import case_tables, image_sets, pictures
from tests.unit.imagebeam.reader import written

TEXT = features.Feature(features.TEXT, features.TEXT, features.BYTES, True)
MASKS = features.Feature("image/object/mask", "image/object/mask", features.BYTES, True)
CLASSES = features.Feature("image/segmentation/class/encoded", "image/segmentation/class/encoded", features.BYTES)


def make(
    tmp_path: pathlib.Path, wanted: Any, values: dict[str, Any], **more: Any
) -> tuple[thumbnails.Thumbnail, PIL.Image.Image | None]:
    """Returns the thumbnail of an example, and its picture."""
    dataset = written.write(tmp_path / "out", wanted, [values], num_shards=1, **more)
    with open(tmp_path / "out" / "train-00000-of-00001.tfrecord", "rb") as file:
        from imagebeam import records

        (record,) = records.read_records(file)
    found = thumbnails.maker_of(dataset.catalog, {}).make(record.data)
    return found, PIL.Image.open(io.BytesIO(found.data)) if found.data else None


def encoded(picture: PIL.Image.Image, kind: str = "PNG", **options: Any) -> dict[str, Any]:
    return {**written.jpeg_values(0), features.ENCODED: image_sets.save(picture, kind, **options)}


PHOTO = pictures.photo(300, 200)
DEEP = PIL.Image.fromarray(np.full((30, 40), 65535, np.uint16))


def test_thumbnail_fits_into_its_frame(tmp_path: pathlib.Path) -> None:
    for values, size in [
        (encoded(PHOTO, "JPEG"), (96, 64)),  # jpeg
        (encoded(PHOTO.convert("CMYK"), "JPEG"), (96, 64)),  # cmyk
        (encoded(PHOTO.convert("L")), (96, 64)),  # gray
        (encoded(PHOTO.convert("P")), (96, 64)),  # palette
        (encoded(PHOTO.convert("LA")), (96, 64)),  # gray-alpha
        (encoded(PHOTO.convert("RGBA"), "WEBP"), (96, 64)),  # webp
        (encoded(DEEP), (80, 60)),  # 16-bit
        (encoded(PHOTO.resize((28, 28))), (84, 84)),  # small-is-enlarged
        (encoded(PHOTO.resize((60, 50))), (60, 50)),  # as-it-is
        (encoded(PHOTO.resize((3000, 10))), (96, 1)),  # panorama
        (encoded(PHOTO.resize((1, 1))), (96, 96)),  # one-pixel
    ]:
        folder = case_tables.new_folder(tmp_path)
        found, picture = make(folder, written.IMAGE, values)
        assert picture is not None, found.problem
        assert picture.size == (found.width, found.height) == size
        assert (picture.mode, picture.format, found.size) == ("RGB", "JPEG", "40 x 30")
        assert len(found.data) < 8_000


def test_deep_and_transparent_pixels_keep_their_brightness(tmp_path: pathlib.Path) -> None:
    clear = PIL.Image.new("RGBA", (40, 30), (0, 0, 0, 0))
    for number, picture in enumerate((DEEP, clear)):
        _, shown = make(tmp_path / f"{number}", written.IMAGE, encoded(picture))
        assert shown is not None and np.asarray(shown).min() > 250


@pytest.mark.parametrize("kind", [features.BYTES, features.INT64, features.FLOAT])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_bare_pixels_are_drawn(tmp_path: pathlib.Path, kind: str, channels: int) -> None:
    image = features.Feature("image/encoded", features.ENCODED, kind, kind != features.BYTES)
    pixels = np.full((28, 28, channels), 200, np.uint8)
    config = {"image": {"encode": "raw"}}
    found, picture = make(tmp_path, (*written.IMAGE[:-1], image), written.raw_values(pixels, 0, kind), config=config)
    assert picture is not None, found.problem
    assert picture.size == (84, 84) and np.asarray(picture).min() > 180


def test_image_that_cannot_be_decoded_is_a_problem(tmp_path: pathlib.Path) -> None:
    for data, problem in [
        (b"no image", "ValueError: its format is not decoded here"),
        (b"\xff\xd8\xff broken", "UnidentifiedImageError: cannot identify image file"),
        (pictures.encode(PHOTO)[:2000], "OSError: image file is truncated"),
        (b"", "ValueError: its format is not decoded here"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        found, _ = make(folder, written.IMAGE, {**written.jpeg_values(0), features.ENCODED: data})
        assert found.data == b"" and found.key == "0"
        assert found.problem.startswith(problem) and " at 0x" not in found.problem


def test_image_with_too_many_pixels_is_not_decoded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnails, "_MAX_DECODED_PX", 1000)
    found, _ = make(tmp_path, written.IMAGE, encoded(PHOTO))
    assert found.problem == "ValueError: 60,000 pixels, too many for a thumbnail"


def test_record_that_is_no_example_is_a_problem(tmp_path: pathlib.Path) -> None:
    dataset = written.write(tmp_path / "out", written.IMAGE, [written.jpeg_values(0)], num_shards=1)
    found = thumbnails.maker_of(dataset.catalog, {}).make(b"\xff\xff")
    assert found.problem.startswith("not an Example: ")
    empty = example.ExampleEncoder([]).encode({}, b"")
    assert thumbnails.maker_of(dataset.catalog, {}).make(b"".join(empty)).problem != ""


def test_boxes_and_masks_change_the_pixels_under_them(tmp_path: pathlib.Path) -> None:
    black = encoded(PIL.Image.new("RGB", (96, 96)))
    nothing: dict[str, Any] = {key: () for key in written.BOX_KEYS}
    objects: dict[str, Any] = {"image/object/class/label": (), "image/object/class/text": ()}
    box = dict(zip(written.BOX_KEYS, ((0.25,), (0.75,), (0.25,), (0.75,))))
    half = np.zeros((96, 96), np.uint8)
    half[:, 48:] = 1
    png = object_masks.encode_png(half)

    def lit(name: str, wanted: Any, values: dict[str, Any]) -> np.ndarray:
        _, shown = make(tmp_path / name, wanted, {**black, **objects, **nothing, **values})
        assert shown is not None
        return np.asarray(shown).max(axis=2) > 60

    wanted = (*written.IMAGE, *written.OBJECTS)
    assert not lit("none", wanted, {}).any()
    drawn = lit("box", wanted, box)
    assert drawn[24, 24:72].all() and not drawn[40:60, 40:60].any() and not drawn[:16].any()
    for name, feature, value in (("mask", MASKS, (png,)), ("classes", CLASSES, png)):
        shown = lit(name, (*wanted, feature), {feature.source: value})
        assert shown[:, 56:].all() and not shown[:, :40].any()


def test_caption_is_what_the_image_shows(tmp_path: pathlib.Path) -> None:
    for wanted, values, more, caption in [
        ((), {}, {}, "0"),  # key
        ((TEXT,), {features.TEXT: (b"a", b"caf\xe9")}, {}, "a, caf\udce9"),  # texts
        ((written.LABEL,), {features.LABEL: 2}, {"labels": ("a", "b"), "label_base": 1}, "b"),  # class
        ((written.LABEL,), {features.LABEL: 9}, {"labels": ("a", "b")}, "9"),  # unknown-class
        ((written.LABEL,), {features.LABEL: 41}, {}, "41"),  # target
        (written.OBJECTS, written.object_values(3, 0), {}, None),  # objects
    ]:
        folder = case_tables.new_folder(tmp_path)
        found, _ = make(folder, (*written.IMAGE, *wanted), {**written.jpeg_values(0), **values}, **more)
        names = [name.decode() for name in values.get("image/object/class/text", ())]
        assert found.caption == (", ".join(dict.fromkeys(names)) if caption is None else caption)
