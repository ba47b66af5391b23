from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_objects
from imagebeam.transforms.objects import yolo_text

CLASSES = image_objects.ClassNames(("cat", "dog"))
READER = yolo_text.YoloReader(CLASSES)


def test_center_and_size_become_edges_with_ids_and_names() -> None:
    found = READER.read(b"1 0.5 0.25 0.5 0.25\n0 0.5 0.5 1 1\n")
    assert found.values == (
        (0.25, 0.0),
        (0.75, 1.0),
        (0.125, 0.0),
        (0.375, 1.0),
        (1, 0),
        (b"dog", b"cat"),
    )
    assert found.expected is None
    assert dict(zip(READER.columns, found.values))["image/object/class/text"] == (b"dog", b"cat")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"0 0.5 0.5 0.5 0.5\r\n", id="crlf"),
        pytest.param(b"0 0.5 0.5 0.5 0.5\r", id="cr"),
        pytest.param(b"\xef\xbb\xbf0 0.5 0.5 0.5 0.5", id="byte-order-mark"),
        pytest.param(b"\n\n  0\t0.5  0.5 0.5 0.5  \n\n", id="blanks"),
        pytest.param(b"0.0 5e-1 .5 +0.5 0.50", id="other-spellings"),
        pytest.param(b"0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75", id="polygon"),
        pytest.param(b"0 0.25 0.25 0.75 0.5 0.5 0.75", id="triangle"),
    ],
)
def test_spellings_of_one_box_are_equal(data: bytes) -> None:
    assert READER.read(data).values[:5] == ((0.25,), (0.75,), (0.25,), (0.75,), (0,))


@pytest.mark.parametrize("data", [None, b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_image_without_label_lines_has_no_objects(data: bytes | None) -> None:
    assert READER.read(data).values == ((),) * 6


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        pytest.param(b"0 nan 0.5 0.5 0.5", "'nan' is not a finite number", id="nan"),
        pytest.param(b"0 0.5 inf 0.5 0.5", "'inf' is not a finite number", id="inf"),
        pytest.param(b"0 0.5 0.5 1e999 0.5", "'1e999' is not a finite number", id="too-large"),
        pytest.param(b"0 0.5 0.5 1_0 0.5", "'1_0' is not a finite number", id="underscore"),
        pytest.param(b"cat 0.5 0.5 0.5 0.5", "'cat' is not a finite number", id="name"),
        pytest.param(b"0,0.5,0.5,0.5,0.5", "is not a finite number", id="commas"),
        pytest.param(b"0.5 0.5 0.5 0.5 0.5", "the class is '0.5', expected an integer", id="class-fraction"),
        pytest.param(b"0 -0.5 0.5 0.5 0.5", "-0.5 is not a share of the image", id="negative-center"),
        pytest.param(b"0 0.5 0.5 -0.005 0.5", "the box has a negative size", id="negative-size"),
        pytest.param(b"0 120 80 40 40", "120 is not a share of the image, 0 to 1; divide pixels", id="pixels"),
        pytest.param(b"0 0.5 0.5 1.5 0.5", "1.5 is not a share of the image", id="beyond-one"),
        pytest.param(b"0 0.5 0.5 0.5", "4 fields, expected class x y width height", id="four"),
        pytest.param(b"0", "1 fields", id="one"),
        pytest.param(b"0 0 0 1 0 1 1 0", "8 fields", id="eight"),
        pytest.param(b"0 0 0 1 0 1 7", "a polygon: 7 is not a share", id="polygon-in-pixels"),
        pytest.param(b"0 0.5 0.5 0.5 0.5 0.9", "source.yolo.confidence: drop leaves it out", id="confidence"),
        pytest.param("0 0.5 0.5 0.5 ½".encode(), "which is no text of numbers", id="not-ascii"),
        pytest.param("0 0.5 0.5 0.5 0.5".encode("utf-16"), "which is no text of numbers", id="utf-16"),
        pytest.param(b"0 0.5 0.5 0.5 0.5\0", "is not a finite number", id="null"),
    ],
)
def test_bad_line_rejects_the_image_and_names_the_line(line: bytes, detail: str) -> None:
    with pytest.raises(checked_image.BadImageError) as found:
        READER.read(b"0 0.5 0.5 0.5 0.5\n\n" + line if not line.startswith(b"\xff") else line)
    assert found.value.reason is Reason.BAD_VALUE
    assert detail in found.value.detail
    assert "line 3" in found.value.detail or line.startswith(b"\xff")


@pytest.mark.parametrize("number", [b"2", b"-1", b"1e9"])
def test_unknown_class_rejects_the_image(number: bytes) -> None:
    with pytest.raises(checked_image.BadImageError, match="the classes are 0 to 1") as found:
        READER.read(number + b" 0.5 0.5 0.5 0.5")
    assert found.value.reason is Reason.UNKNOWN_LABEL


def test_classes_with_gaps_keep_their_numbers_and_base_is_added() -> None:
    reader = yolo_text.YoloReader(image_objects.ClassNames(("cat", "dog"), (3, 7), base=1))
    assert reader.read(b"7 0.5 0.5 0.5 0.5").values[4:] == ((8,), (b"dog",))
    with pytest.raises(checked_image.BadImageError, match="the class is 4, and the classes are 3 to 7"):
        reader.read(b"4 0.5 0.5 0.5 0.5")


@pytest.mark.parametrize(
    ("line", "values", "dropped"),
    [
        pytest.param(b"0 0 0.5 0.5 0.5", ((0.0,), (0.25,), (0.25,), (0.75,)), {}, id="clipped"),
        pytest.param(b"0 0.5 0.5 0 0.5", ((), (), (), ()), {image_objects.NO_AREA: 1}, id="no-width"),
        pytest.param(b"0 -0.005 0.5 0.002 0.5", ((), (), (), ()), {image_objects.OUTSIDE: 1}, id="outside"),
        pytest.param(b"0 0.1 0.1 0.1 0.1 0.1 0.1", ((), (), (), ()), {image_objects.NO_AREA: 1}, id="point"),
    ],
)
def test_box_is_clipped_or_dropped_and_counted(line: bytes, values: object, dropped: dict[str, int]) -> None:
    found = READER.read(line)
    assert (found.values[:4], found.dropped) == (values, dropped)


def test_options_change_what_becomes_of_lines() -> None:
    strict = yolo_text.YoloReader(CLASSES, polygons="reject", rejects_outside=True)
    with pytest.raises(checked_image.BadImageError, match=r"source.yolo.outside: clip would cut it"):
        strict.read(b"0 0 0.5 0.5 0.5")
    assert strict.read(b"0 0.25 0.5 0.500001 0.5").values[0] == (0.0,)  # rounded
    with pytest.raises(checked_image.BadImageError, match=r"a polygon of 3 points; source.yolo.polygons: box"):
        strict.read(b"0 0 0 1 0 1 1")
    dropping = yolo_text.YoloReader(CLASSES, confidence="drop")
    assert dropping.read(b"0 0.5 0.5 0.5 0.5 0.9").values[0] == (0.25,)
    posed = yolo_text.YoloReader(CLASSES, num_keypoint_values=6)
    assert posed.read(b"0 0.5 0.5 0.5 0.5 1 2 3 4 5 6").values[0] == (0.25,)
    with pytest.raises(checked_image.BadImageError, match="5 fields, expected 11"):
        posed.read(b"0 0.5 0.5 0.5 0.5")


def test_file_that_is_too_long_is_a_reject() -> None:
    with pytest.raises(checked_image.BadImageError, match="the annotations of one image may have 16,777,216") as found:
        READER.read(b" " * (image_objects.MAX_FILE_BYTES + 1))
    assert found.value.reason is Reason.TOO_LARGE


def test_reader_is_pickled_without_what_it_computed() -> None:
    READER.read(b"0 0.5 0.5 0.5 0.5")
    assert pickle.dumps(READER) == pickle.dumps(yolo_text.YoloReader(image_objects.ClassNames(("cat", "dog"))))


NUMBERS = st.one_of(
    st.floats(-0.2, 1.2).map(str), st.integers(-2, 3).map(str), st.sampled_from(["nan", "-inf", "", "x", "1e-400", "½"])
)
LINES = st.lists(NUMBERS, max_size=9).map(" ".join)
FILES = st.one_of(st.binary(max_size=80), st.lists(LINES, max_size=4).map("\n".join).map(str.encode))


@given(FILES)
def test_any_bytes_give_valid_boxes_or_a_reject(data: bytes) -> None:
    try:
        found = READER.read(data)
    except checked_image.BadImageError as e:
        assert e.reason in (Reason.BAD_VALUE, Reason.UNKNOWN_LABEL)
        return
    assert len({len(values) for values in found.values}) == 1
    for xmin, xmax, ymin, ymax, label, text in zip(*found.values):
        assert 0 <= xmin < xmax <= 1
        assert 0 <= ymin < ymax <= 1
        assert CLASSES.texts()[label] == text
        assert not any(map(math.isnan, (xmin, xmax, ymin, ymax)))
