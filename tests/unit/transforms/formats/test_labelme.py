from __future__ import annotations

import io
import json
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import labelme as labelme_format
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.images import checked_image, image_objects, object_masks

CLASSES = image_objects.ClassNames(("cat", "dog"), None, 1)
CORNERS = [[30, 20], [10, 5]]
POLYGON = [[10, 5], [30, 5], [20.5, 20]]


def labelme(*shapes: Any, **fields: Any) -> bytes:
    file = {
        "version": "5.0",
        "flags": {},
        "shapes": list(shapes),
        "imageData": None,
        "imageHeight": 30,
        "imageWidth": 40,
    }
    return json.dumps({**file, **fields}).encode()


def shape(kind: Any, points: Any, label: Any = "cat") -> dict[str, Any]:
    return {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}}


def read(data: bytes | None, **options: Any) -> image_objects.Annotations:
    shapes = labelme_format.Shapes(bool(options.get("masks")))
    return syntax.RowReader(CLASSES, shapes, option="source.labelme", **options).read(data)


def test_shapes_become_boxes_and_others_are_counted() -> None:
    shapes = [
        shape("rectangle", CORNERS),
        shape("polygon", POLYGON, "dog"),
        shape(None, POLYGON),
        shape("circle", [[20, 15], [20, 25]]),
        shape("point", [[1, 1]]),
        shape("linestrip", POLYGON),
        shape("rectangle", [[50, 50], [60, 60]]),
    ]
    found = read(b"\xef\xbb\xbf" + labelme(*shapes))
    columns = dict(zip(image_objects.COLUMNS, found.values, strict=True))
    assert columns["image/object/bbox/xmin"] == pytest.approx([0.25, 0.25, 0.25, 0.25])
    assert columns["image/object/bbox/xmax"] == pytest.approx([0.75, 0.75, 0.75, 0.75])
    assert columns["image/object/bbox/ymin"] == pytest.approx([5 / 30] * 4)
    assert columns["image/object/bbox/ymax"] == pytest.approx([20 / 30] * 3 + [25 / 30])
    assert columns["image/object/class/text"] == (b"cat", b"dog", b"cat", b"cat")
    assert columns["image/object/class/label"] == (1, 2, 1, 1)
    assert (found.expected, found.dropped) == ((30, 40), {"object_of_other_shape": 2, "object_outside_image": 1})
    assert read(None).values == ((),) * 6


def test_masks_are_those_of_the_outlines() -> None:
    found = read(labelme(shape("rectangle", CORNERS), shape("circle", [[20, 15], [20, 25]])), masks=True)
    pngs = [object_masks.render(each, (30, 40)) for each in found.values[-1]]
    rectangle, circle = (np.asarray(Image.open(io.BytesIO(png))) for png in pngs)
    expected = np.zeros((30, 40), np.uint8)
    expected[5:20, 10:30] = 1
    np.testing.assert_array_equal(rectangle, expected)
    rows, columns = np.mgrid[:30, :40] + 0.5
    distance = np.hypot(columns - 20, rows - 15)
    assert circle[distance < 9].all() and not circle[distance > 11].any()


def test_file_that_cannot_be_used_is_a_bad_image() -> None:
    for data, reason, detail in [
        (b"", Reason.BAD_VALUE, "is not JSON"),
        (b"\xff\xfe{\0", Reason.BAD_VALUE, "is not JSON"),
        (b"[]", Reason.BAD_VALUE, "holds a JSON list; a file of LabelMe is an object"),
        (b"[" * 100_000, Reason.BAD_VALUE, "is nested too deep"),
        (labelme(imageHeight=None), Reason.BAD_VALUE, "height is None, expected a finite number"),
        (labelme(imageWidth=10**9), Reason.BAD_VALUE, "the size is 1e+09 x 30, expected pixels"),
        (labelme(shapes={}), Reason.BAD_VALUE, "has no list of shapes"),
        (labelme(5), Reason.BAD_VALUE, "shape 1: a list of points is 'None', expected a list"),
        (labelme(shape("rectangle", [[1, 2]])), Reason.BAD_VALUE, "shape 1: a rectangle of 1 points"),
        (
            labelme(shape("polygon", CORNERS)),
            Reason.BAD_VALUE,
            "a polygon of 4 numbers, expected x and y of 3 points or more",
        ),
        (labelme(shape("circle", POLYGON)), Reason.BAD_VALUE, "a circle of 3 points"),
        (labelme(shape("polygon", [[1, float("nan")]] * 3)), Reason.BAD_VALUE, "y is nan, expected a finite"),
        (labelme(shape("polygon", [[1, True]] * 3)), Reason.BAD_VALUE, "y is True, expected a finite"),
        (labelme(shape("cube", POLYGON)), Reason.BAD_VALUE, "the shape_type is 'cube'"),
        (labelme(shape("polygon", POLYGON, None)), Reason.BAD_VALUE, "shape 1: it has no class"),
        (labelme(shape("polygon", POLYGON, "cow")), Reason.UNKNOWN_LABEL, "'cow' is none of source.labelme.classes"),
    ]:
        with pytest.raises(checked_image.BadImageError) as caught:
            read(data)
        assert caught.value.reason is reason and detail in caught.value.detail


def test_what_masks_cannot_hold_is_a_bad_image() -> None:
    for kind, points, detail in (
        ("mask", CORNERS, "a shape of the type mask holds a picture"),
        ("polygon", [[1e7, 0], [0, 1], [1, 1]], "far outside"),
    ):
        with pytest.raises(checked_image.BadImageError, match=detail):
            read(labelme(shape(kind, points)), masks=True)
    with pytest.raises(checked_image.BadImageError, match=r"source.labelme.outside: clip would cut"):
        read(labelme(shape("polygon", [[-5, 0], [4, 1], [1, 1]])), rejects_outside=True)


def test_damaged_files_are_bad_images_or_boxes() -> None:
    whole = labelme(shape("rectangle", CORNERS), shape("polygon", POLYGON, "dog"))
    rng = random.Random(0)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            found = read(bytes(damaged), masks=True)
        except checked_image.BadImageError as e:
            assert e.detail
        else:
            assert len({len(column) for column in found.values}) == 1
        syntax.class_names(labelme_format.Shapes(), bytes(damaged))


def test_class_names_are_collected() -> None:
    assert syntax.class_names(
        labelme_format.Shapes(), labelme(shape("point", []), shape("rectangle", [], " dog "), 5)
    ) == {"cat", "dog"}
    assert syntax.class_names(labelme_format.Shapes(), b"") == set()
