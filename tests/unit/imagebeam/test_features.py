from __future__ import annotations

from collections.abc import Mapping

import pytest

from imagebeam import features
from imagebeam.features import BYTES, FLOAT, INT64, Feature
from tests import case_tables

INTEGERS = ("channels", "class/label", "height", "width")
BY_DEFAULT = {  # the kinds, in the order of the keys, but for the image
    f"image/{name}": INT64 if name in INTEGERS else BYTES
    for name in (
        *("channels", "class/label", "class/text", "colorspace", "filename", "format", "height", "key", "width"),
        "encoded",
    )
}
LEFT = ("left", "right")


def _single(columns: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """Columns of one value each."""
    return {name: (kind, False) for name, kind in columns.items()}


def resolve(
    renamed: Mapping[str, str | None] | None = None,
    label_kind: str | None = "class",
    columns: Mapping[str, str] | None = None,
) -> dict[str, tuple[str, str]]:
    """Source and kind of every feature, by key."""
    resolved = features.resolve_features(renamed or {}, label_kind, _single(columns or {}))
    return {feature.key: (feature.source, feature.kind) for feature in resolved}


def test_default_features_are_the_imagenet_keys_with_the_image_last() -> None:
    resolved = features.resolve_features({}, "class", {})
    assert resolved == tuple(Feature(key, key, kind) for key, kind in BY_DEFAULT.items())


def test_further_images_have_four_keys_each_before_the_image() -> None:
    resolved = features.resolve_features(
        {"image/right/format": None, "image/left/encoded": "l"}, None, {}, extra_images=LEFT
    )
    keys = {feature.source: feature.key for feature in resolved if features.extra_image_part(feature.source)}
    expected = {f"image/{side}/{part}" for side in LEFT for part in features.EXTRA_IMAGE_PARTS} - {"image/right/format"}
    assert keys == {source: source for source in expected} | {"image/left/encoded": "l"}
    assert resolved[-1].key == "image/encoded"
    found = features.extra_images(resolved)
    assert list(found) == ["left", "right"]
    assert found["left"]["encoded"] == "l" and "format" not in found["right"]
    assert features.meaning_of("image/left/width") == "left: width of a further image, pixels"
    without = features.resolve_features({"image/left/encoded": None}, None, {}, extra_images=LEFT)
    assert list(features.extra_images(without)) == ["right"]


def test_name_of_a_further_image_that_does_not_fit_into_keys_is_refused() -> None:
    for source in ("image/encoded", "image/segmentation/class/encoded", "columns/image/a/encoded"):
        assert features.extra_image_part(source) is None
    for name in ("", "A", "a/b", "1", "class", "object", "encoded", "segmentation", "key", "ä"):
        with pytest.raises(ValueError, match=r"is no name for keys|is taken"):
            features.check_extra_image_name(name)


def test_label_features_follow_the_kind_of_label() -> None:
    for label_kind, kind, has_text in (("class", INT64, True), (INT64, INT64, False), (FLOAT, FLOAT, False)):
        resolved = resolve(label_kind=label_kind)
        assert resolved["image/class/label"] == ("image/class/label", kind)
        assert ("image/class/text" in resolved) is has_text
    assert not {"image/class/label", "image/class/text"} & resolve(label_kind=None).keys()


def test_features_and_columns_are_renamed_dropped_and_added() -> None:
    renamed = {"image/encoded": "image_raw", "image/height": None, "image/source_id": "image/source_id"}
    columns = {"age": FLOAT, "site": BYTES, "visit": INT64}
    resolved = resolve(renamed | {"columns/site": "clinic", "columns/visit": None}, columns=columns)
    expected = {key: (key, kind) for key, kind in BY_DEFAULT.items()} | {
        "image_raw": ("image/encoded", BYTES),
        "image/source_id": ("image/source_id", BYTES),
        "age": ("columns/age", FLOAT),
        "clinic": ("columns/site", BYTES),
    }
    del expected["image/encoded"], expected["image/height"]
    assert resolved == expected


def test_impossible_features_are_refused() -> None:
    twice = "features {} and {} both have the key {}"
    for renamed, columns, complaint in [
        ({"image/encode": "x"}, {}, "features names 'image/encode', which is none of image/caption, image/channels, "),
        ({"age": "x"}, {"age": FLOAT}, "features names 'age', .* columns/age, "),
        ({"image/key": "x", "image/filename": "x"}, {}, twice.format("'image/filename'", "'image/key'", "'x'")),
        ({}, {"image/key": BYTES}, twice.format("'image/key'", "'columns/image/key'", "'image/key'")),
    ]:
        with case_tables.named(renamed, columns, complaint), pytest.raises(ValueError, match=complaint):
            features.resolve_features(renamed, "class", _single(columns))


def test_check_value_accepts_what_a_kind_can_hold() -> None:
    held = {BYTES: [b""], INT64: [2**63 - 1, -(2**63)], FLOAT: [1.5, 1]}
    refused = {BYTES: ["text"], INT64: [2**63, -(2**63) - 1, 1.0], FLOAT: ["1.5"]}
    for kind in (BYTES, INT64, FLOAT):
        assert all(features.check_value(kind, value) for value in held[kind])
        assert not any(features.check_value(kind, value) for value in refused[kind])


def test_objects_and_masks_of_the_source_are_features() -> None:
    objects = {f"image/object/{name}" for name in ("class/label", "class/text")}
    objects |= {f"image/object/bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax")}
    segmentation = {"image/segmentation/class/encoded", "image/segmentation/class/format"}
    before = {feature.key for feature in features.resolve_features({}, None, {})}
    for provided, expected in [
        (set(), set()),
        ({"objects"}, objects),
        ({"objects", "object areas"}, objects | {"image/object/area", "image/object/is_crowd"}),
        ({"objects", "object masks"}, objects | {"image/object/mask"}),
        ({"segmentation"}, segmentation),
    ]:
        resolved = features.resolve_features({}, None, {}, given=provided)
        assert {feature.key for feature in resolved} - before == expected
        assert {feature.key for feature in resolved if feature.many} == expected - segmentation


def test_feature_that_the_source_lacks_is_refused() -> None:
    for name, reason in [
        ("image/object/area", "source gives no objects"),
        ("image/object/mask", "source gives no masks of objects"),
        ("image/segmentation/class/encoded", "there are no masks"),
        ("image/class/text", "label gives no classes"),
        ("image/class/label", "label gives no labels"),
    ]:
        with pytest.raises(ValueError, match=f"features names '{name}', but {reason}"):
            features.resolve_features({name: "x"}, None, {})
        assert features.resolve_features({name: None}, None, {})  # to drop it does no harm


def test_image_of_numbers_is_a_list() -> None:
    for kind in (INT64, FLOAT):
        (*_, last) = features.resolve_features({}, "class", {}, pixels=kind)
        assert last == Feature("image/encoded", "image/encoded", kind, True)
