from __future__ import annotations

import json

from imagebeam.transforms import elements
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.images import structure
from imagebeam.transforms.shard import statistics
from imagebeam.transforms.snapshots import image_states
from tests import image_sets

IMAGE = structure.check_image(image_sets.make_image(1))


def test_objects_are_counted_by_id_and_name() -> None:
    counted = class_names.count((10, 2, 10), (b"traffic light", b"cat", b"traffic light"))
    assert counted == {"10 traffic light": 2, "2 cat": 1}
    assert list(class_names.by_name(counted).items()) == [("cat", 1), ("traffic light", 2)]
    assert class_names.by_name({"1 cat": 1, "2 cat": 5}) == {"cat": 6}
    names = class_names.names_by_id([counted, {"2 dog": 1}], {0: b"\xff", 2: b"cat"})
    assert names == {0: "\udcff", 2: "cat", 10: "traffic light"}


def test_label_map_is_text_of_protobuf() -> None:
    text = class_names.label_map({1: 'a "b"\\', 90: "\u00e9"}).decode()
    assert text == 'item {\n  id: 1\n  name: "a \\"b\\"\\\\"\n}\nitem {\n  id: 90\n  name: "\u00e9"\n}\n'


def test_counts_of_objects_are_merged_and_subtracted_exactly() -> None:
    def counted(*objects: dict[str, int] | None) -> dict[str, object]:
        builder = statistics.StatisticsBuilder()
        for each in objects:
            builder.add((), statistics.measure("a.jpg", IMAGE, each))
        return builder.build()

    merged = statistics.merge_statistics([counted({"1 cat": 2}, {}), counted({"1 cat": 1, "2 dog": 4})])
    assert merged["objects"] == {"1 cat": 3, "2 dog": 4}
    assert statistics.describe_statistics(merged)["objects"] == {"cat": 3, "dog": 4}
    left = statistics.subtract_statistics(merged, counted({"1 cat": 1, "2 dog": 4}))
    assert left["objects"] == {"1 cat": 2}
    assert "objects" not in counted(None) and counted({})["objects"] == {}


def test_state_keeps_the_counts_of_objects() -> None:
    def encoded(*objects: dict[str, int] | None) -> bytes:
        builder = image_states.StateBuilder()
        for each in objects:
            ref = elements.ImageRef("a", "/a", fingerprint=bytes(image_states.FINGERPRINT_BYTES))
            builder.add(ref, statistics.measure("a.jpg", IMAGE, each))
        return builder.encode()

    images = image_states.decode_state(encoded({"1 cat": 2}, {}), 2, "x").images
    assert [each.measures and each.measures.objects for each in images] == [{"1 cat": 2}, {}]
    (image,) = image_states.decode_state(encoded(None), 1, "x").images
    assert image.measures == statistics.measure("a.jpg", IMAGE)
    assert json.dumps(image.measures.objects) == "null"
