"""Tests the tables of an annotation file; test_coco.py tests whole files, through their source."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import coco_json
from imagebeam.transforms.sources import annotation_tables

IMAGE = {"id": 7, "file_name": "a.jpg", "height": 10, "width": 20}
BOX = {"image_id": 7, "category_id": 3, "bbox": [5, 2, 10, 4]}
CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 1, "name": "dög"}]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "instances.json"


def tables(
    path: pathlib.Path, rule: coco_json.ObjectRule = coco_json.BOXES, columns: tuple[str, ...] = (), **lists: Any
) -> tuple[annotation_tables.ImageTable, annotation_tables.ObjectTable, Counter[str]]:
    """Writes a file of these lists and reads it."""
    path.write_text(json.dumps({"images": [IMAGE], "annotations": [], "categories": CATEGORIES} | lists))
    left_out: Counter[str] = Counter()
    with coco_json.open_file(str(path)) as file:
        images = coco_json.read_images(file, columns)
        return images, coco_json.read_objects(file, images, rule, left_out), left_out


def test_images_are_numbered_in_the_order_of_the_file(path: pathlib.Path) -> None:
    others = [IMAGE | {"id": "x", "file_name": "b/c.jpg", "license": 4}, IMAGE | {"id": 9.0, "height": 30.0}]
    images, _, _ = tables(path, columns=("license", "id"), images=[IMAGE, *others])
    assert images.names == ["a.jpg", "b/c.jpg", "a.jpg"]
    assert images.ids == [7, "x", 9]
    assert images.numbers == {7: 0, "x": 1, 9: 2}
    assert (list(images.heights), list(images.widths)) == ([10, 10, 30], [20, 20, 20])
    assert images.cells == [(None, 7), (4, "x"), (None, 9.0)]
    assert images.faults == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 3])), max_size=30))
def test_objects_of_an_image_keep_the_order_of_the_file(placed: list[tuple[int, int]]) -> None:
    table = annotation_tables.ObjectTable(4, {1: b"one", 3: b"three"})
    for number, (image, label) in enumerate(placed):
        table.add(image, label, (0, 1, 0, 1, number), number % 2, b"%d" % number)
    for image in range(4):
        numbers = [number for number, (each, _) in enumerate(placed) if each == image]
        found = table.of(image)
        assert found.areas == tuple(map(float, numbers))
        assert found.labels == tuple(placed[number][1] for number in numbers)
        assert found.texts == tuple({1: b"one", 3: b"three"}[label] for label in found.labels)
        assert found.crowds == tuple(number % 2 for number in numbers)
        assert found.masks == tuple(b"%d" % number for number in numbers)


def test_long_value_is_cut_in_an_error(path: pathlib.Path) -> None:
    images, _, _ = tables(path, annotations=[BOX | {"id": 5, "bbox": ["x" * 1000] * 9}])
    reason, detail = images.faults[0]
    assert reason is Reason.BAD_VALUE
    assert detail.startswith("annotation 5: bbox is ['xxx")
    assert len(detail) < 200


@pytest.fixture
def remote() -> Iterator[str]:
    uri = "memory://coco/instances.json"
    storage.storage_of(uri).write_whole(uri, b'\xef\xbb\xbf{"images": [1, 2], "annotations": []}')
    yield uri
    storage.storage_of(uri).remove(uri)


def test_remote_file_can_be_read_several_times_and_its_byte_order_mark_is_skipped(remote: str) -> None:
    with coco_json.open_file(remote) as file:
        assert [list(file.items("images")) for _ in range(2)] == [[1, 2], [1, 2]]
        assert list(file.items("annotations")) == []
        file.require_list("annotations")


def test_chosen_categories_keep_their_ids_and_category_0_is_one(path: pathlib.Path) -> None:
    boxes = [{"id": n, "image_id": 7, "category_id": n, "bbox": [0, 0, 2, 2]} for n in (0, 3)]
    fields = {
        "images": [{"id": 7, "file_name": "a.jpg", "height": 4, "width": 4}],
        "annotations": boxes,
        "categories": [{"id": 0, "name": "cat"}, {"id": 3, "name": "dog"}],
    }
    path.write_text(json.dumps(fields))
    for wanted, labels, left_out in (((), (0, 3), {}), (("dog",), (3,), {coco_json.OTHER_CATEGORY: 1})):
        counts: Counter[str] = Counter()
        with coco_json.open_file(str(path)) as file:
            images = coco_json.read_images(file, ())
            rule = coco_json.ObjectRule(categories=wanted)
            assert coco_json.read_objects(file, images, rule, counts).of(0).labels == labels
        assert counts == left_out
    with (
        coco_json.open_file(str(path)) as file,
        pytest.raises(annotation_tables.AnnotationFileError, match=r"has no category 'dgo', which .* it has cat, dog"),
    ):
        coco_json.read_objects(file, images, coco_json.ObjectRule(categories=("dgo",)), counts)
