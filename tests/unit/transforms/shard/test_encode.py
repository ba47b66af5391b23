from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image as PillowImage

from imagebeam import example, features
from imagebeam.transforms.elements import ImageRef, Mask
from imagebeam.transforms.images import checked_image, image_objects, object_masks
from imagebeam.transforms.shard import encode

IMAGE = checked_image.Image(b"bytes of a jpeg", "jpeg", 4, 6, 3, "RGB")
IDS = {"cat": 0, "caf\udce9": 1, "dog": 2}


def parse(recipe: encode.ExampleRecipe, ref: ImageRef, image: checked_image.Image = IMAGE) -> dict[str, list[object]]:
    return dict(example.parse_example(b"".join(recipe.encode(ref, image))))


def of(*sources: str, many: tuple[str, ...] = ()) -> tuple[features.Feature, ...]:
    """Returns standard features under their own names; those of `many` are lists."""
    return tuple(
        features.Feature(
            source, source, features.STANDARD[source].kind if source in features.STANDARD else "bytes", source in many
        )
        for source in sources
    )


def test_image_is_the_second_piece_and_not_copied() -> None:
    recipe = encode.ExampleRecipe(of("image/key", features.ENCODED), {})
    before, data = recipe.encode(ImageRef("k", "/k"), IMAGE)
    assert data is IMAGE.data
    assert example.parse_example(before + data)["image/encoded"] == [IMAGE.data]


def test_facts_of_image_and_reference_are_under_their_keys() -> None:
    names = ("format", "height", "width", "channels", "colorspace", "filename", "key", "source_id")
    recipe = encode.ExampleRecipe(of(*(f"image/{name}" for name in names)), {})
    found = parse(recipe, ImageRef("pets/caf\udce9.jpg", "/root/pets/caf\udce9.jpg"))
    assert found == {
        "image/format": [b"jpeg"],
        "image/height": [4],
        "image/width": [6],
        "image/channels": [3],
        "image/colorspace": [b"RGB"],
        "image/filename": [b"caf\xe9.jpg"],
        "image/key": [b"pets/caf\xe9.jpg"],
        "image/source_id": [b"pets/caf\xe9.jpg"],
    }


def test_label_is_stored_as_id_text_and_name() -> None:
    for label, many, expected in [
        ("dog", False, ([2], [b"Canis"], [b"dog"])),  # one-class
        ("caf\udce9", False, ([1], [b"caf\xe9"], [b"caf\xe9"])),  # not-utf-8
        (("dog", "cat"), True, ([0, 2], [b"cat", b"Canis"], [b"cat", b"dog"])),  # several-by-id
        ((), True, ([], [], [])),  # no-class
    ]:
        sources = (features.LABEL, features.TEXT, "image/class/synset")
        recipe = encode.ExampleRecipe(of(*sources, many=sources if many else ()), IDS, texts={"dog": "Canis"})
        found = parse(recipe, ImageRef("k", "/k", label=label))
        assert tuple(found[source] for source in sources) == expected


def test_mask_of_classes_is_stored_only_where_the_reference_has_one() -> None:
    sources = ("image/segmentation/class/encoded", "image/segmentation/class/format")
    recipe = encode.ExampleRecipe(of(*sources), {})
    found = parse(recipe, ImageRef("k", "/k", mask=Mask("/m", 1, 1)), IMAGE._replace(mask=b"png of classes"))
    assert [found[source] for source in sources] == [[b"png of classes"], [b"png"]]
    with pytest.raises(KeyError):
        recipe.encode(ImageRef("k", "/k"), IMAGE)


def test_masks_of_objects_are_drawn_for_the_stored_size() -> None:
    for stored in [(4, 6), (8, 12)]:
        square = [0, 0, 3, 0, 3, 2, 0, 2]
        packed = object_masks.pack([square], 4, 6), object_masks.pack({"counts": [0, 24], "size": [4, 6]}, 4, 6)
        recipe = encode.ExampleRecipe(
            of(object_masks.FEATURE, many=(object_masks.FEATURE,)), {}, (object_masks.FEATURE,)
        )
        ref = ImageRef("k", "/k", columns=(packed,), expected=(4, 6))
        found = parse(recipe, ref, IMAGE._replace(height=stored[0], width=stored[1]))[object_masks.FEATURE]
        masks = [np.asarray(PillowImage.open(io.BytesIO(png))) for png in found]
        assert [mask.shape for mask in masks] == [stored] * 2
        assert [mask.mean() for mask in masks] == [0.25, 1]


def test_masks_of_objects_are_not_drawn_where_no_feature_holds_them() -> None:
    recipe = encode.ExampleRecipe(of("image/key"), {}, (object_masks.FEATURE,))
    assert parse(recipe, ImageRef("k", "/k", columns=((b"cannot be drawn",),))) == {"image/key": [b"k"]}


def test_kept_features_are_copied_from_the_record_of_the_image() -> None:
    stored = (
        features.Feature("score", "columns/score", features.FLOAT),
        features.Feature("names", "columns/names", features.BYTES, True),
    )
    values = {"columns/score": 0.25, "columns/names": [b"a", b"b"]}
    record = b"".join(example.ExampleEncoder(stored).encode(values, b""))
    renamed = (stored[0]._replace(key="quality"), stored[1])
    recipe = encode.ExampleRecipe((*of("image/key"), *renamed), {}, kept=renamed)
    found = parse(recipe, ImageRef("k", "/k"), IMAGE._replace(record=record))
    assert found == {"image/key": [b"k"], "quality": [0.25], "names": [b"a", b"b"]}


def test_keypoints_turn_with_the_picture_and_those_that_are_not_labeled_stay_0() -> None:
    columns = (*image_objects.BOX_COLUMNS, *image_objects.KEYPOINT_COLUMNS)
    recipe = encode.ExampleRecipe(of(*columns, many=columns), {}, columns)
    box = (0.0,), (0.5,), (0.0,), (0.25,)
    ref = ImageRef("a", "/a", columns=(*box, (0.25, 0.0), (0.125, 0.0), (2, 0), (1,)))
    found = parse(recipe, ref, IMAGE._replace(annotation_turn=6))  # a quarter turn clockwise
    assert [found[f"image/object/bbox/{edge}"] for edge in ("xmin", "xmax", "ymin", "ymax")] == [
        [0.75],
        [1],
        [0],
        [0.5],
    ]
    assert found["image/object/keypoint/x"] == [0.875, 0.0]
    assert found["image/object/keypoint/y"] == [0.25, 0.0]
    assert found["image/object/keypoint/visibility"] == [2, 0]
