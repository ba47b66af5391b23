from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from imagebeam import example, features
from imagebeam.transforms import elements, user_code
from imagebeam.transforms.images import checked_image, prepare
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.shard import feature_functions
from tests import case_tables, image_sets, user_functions

SIZES = [(8 + index, 6) for index in range(7)]  # width and height: each image has its own
FILES = [image_sets.make_image(index, "PNG", size=size) for index, size in enumerate(SIZES)]
calls: list[list[int]] = []


def widths(images: list[np.ndarray], references: list[user_code.Reference]) -> list[int]:
    calls.append([image.shape[1] for image in images])
    assert [reference.key for reference in references] == [f"{width - 8}.png" for width in calls[-1]]
    return [np.int32(image.shape[1]) for image in images]


def fails_at_ten(images: list[np.ndarray], references: list[user_code.Reference]) -> list[int]:
    if any(image.shape[1] == 10 for image in images):
        raise ValueError("ten")
    return widths(images, references)


def darkens(images: list[np.ndarray], references: list[user_code.Reference]) -> list[int]:
    for image in images:
        image[...] = 0
    if len(images) > 1:
        raise SystemExit(1)  # so each image is given once more
    return [0]


def brightest(images: list[np.ndarray], references: list[user_code.Reference]) -> list[int]:
    return [int(image.max()) for image in images]


def refills(images: list[np.ndarray], references: list[user_code.Reference]) -> list[np.ndarray]:
    found = []
    for image in images:
        buffer[:] = image.shape[:2]
        found.append(buffer[:])  # a view: another object
    return found


buffer = np.zeros(2, np.int64)


def returns(images: list[np.ndarray], references: list[user_code.Reference], *, what: str) -> Any:
    return RETURNED[what](len(images))


RETURNED: dict[str, Any] = {
    "int": lambda count: [1] * count,
    "numpy": lambda count: np.arange(count),
    "float": lambda count: np.full(count, 0.5, np.float16),
    "text": lambda count: ["ä"] * count,
    "bytes": lambda count: [b"\xff"] * count,
    "texts": lambda count: [["a", "b"]] * count,
    "rows": lambda count: np.ones((count, 2, 3)),
    "lists": lambda count: [[[1, 2, 3], [4, 5, 6]]] * count,
    "ragged": lambda count: [[[1, 2, 3], [4]]] * count,
    "large": lambda count: [2**63] * count,
    "beyond": lambda count: [1e300] * count,
    "flags": lambda count: [True] * count,
    "none": lambda count: None,
    "a value": lambda count: 3.0,
    "too few": lambda count: [1] * (count - 1),
    "no values": lambda count: [None] * count,
    "nan": lambda count: [float("nan")] * count,
    "a set": lambda count: {*range(count)},
    "a mapping": lambda count: dict.fromkeys(range(count), 1),
    "a text": lambda count: "x" * count,
}


def function(name: str, kind: str = features.INT64, shape: tuple[int, ...] = (), batch: int = 3, **options: Any) -> Any:
    code = user_code.find("features.functions x", f"{__name__}:{name}", options, version="1")
    feature = features.Feature("x", "functions/x", kind, bool(shape), shape or None)
    return feature_functions.FeatureFunction(feature, code, batch)


def images(
    policy: ImagePolicy = prepare.AS_IT_IS, missing: tuple[int, ...] = ()
) -> Iterator[tuple[elements.ImageRef, Any]]:
    for index, data in enumerate(FILES):
        ref = elements.ImageRef(f"{index}.png", f"/{index}.png")
        if index in missing:
            yield ref, elements.Reject(ref.key, ref.uri, "read", elements.Reason.NOT_FOUND, "")
        else:
            yield ref, policy.prepare(data)


def run(*functions: Any, given: Any = None) -> list[tuple[elements.ImageRef, Any]]:
    calls.clear()
    return list(feature_functions.FeatureFunctions(functions).add_to(images() if given is None else given))


def packed(kind: str, *values: Any) -> bytes:
    return bytes(example.encode_values(kind, values))


@case_tables.each_case("batch", range(1, 9))
@case_tables.each_case("missing", [(), (0,), (2, 3), (6,), tuple(range(7))])
def test_images_come_in_batches_and_in_order(batch: int, missing: tuple[int, ...]) -> None:
    found = run(function("widths", batch=batch), given=images(missing=missing))
    there = [8 + index for index in range(7) if index not in missing]
    assert calls == [there[start : start + batch] for start in range(0, len(there), batch)]
    assert [ref.key for ref, _ in found] == [f"{index}.png" for index in range(7)]
    for index, (_, image) in enumerate(found):
        if index in missing:
            assert image.reason is elements.Reason.NOT_FOUND
        else:
            assert image.computed == (packed(features.INT64, 8 + index),)


def test_functions_have_batches_of_their_own() -> None:
    found = run(function("widths", batch=2), function("widths", batch=4))
    assert sorted(map(len, calls)) == [1, 2, 2, 2, 3, 4]
    assert all(len(image.computed) == 2 for _, image in found)


def test_function_that_writes_into_its_images_changes_none_of_the_next() -> None:
    alone = [image.computed[0] for _, image in run(function("brightest"))]
    both = [image.computed for _, image in run(function("darkens"), function("brightest"))]
    assert both == [(packed(features.INT64, 0), each) for each in alone]
    assert {*alone} != {packed(features.INT64, 0)}


def test_function_that_returns_one_buffer_for_all_images_is_called_for_each_alone() -> None:
    found = [image.computed for _, image in run(function("refills", shape=(2,), batch=4))]
    assert found == [(packed(features.INT64, 6, width),) for width, _ in SIZES]


def test_images_above_256_megabytes_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_functions, "_MAX_BYTES", 2 * 9 * 6 * 3)
    run(function("widths", batch=7))
    assert [len(each) for each in calls] == [3, 2, 2]


def test_only_the_images_that_a_function_fails_for_are_rejected() -> None:
    found = run(function("fails_at_ten", batch=4), function("widths", batch=7))
    assert calls == [[8], [9], [11], [12, 13, 14], [8, 9, 11, 12, 13, 14]]
    rejects = [image for _, image in found if isinstance(image, elements.Reject)]
    assert [(each.key, each.reason) for each in rejects] == [("2.png", elements.Reason.FUNCTION)]
    assert "raised ValueError: ten, test_feature_functions.py line" in rejects[0].detail
    assert [ref.key for ref, _ in found] == [f"{index}.png" for index in range(7)]


STORED = {  # what is returned, kind, shape: the stored values of each image
    ("int", features.INT64, ()): (1,),
    ("float", features.FLOAT, ()): (0.5,),
    ("text", features.BYTES, ()): ("ä".encode(),),
    ("bytes", features.BYTES, ()): (b"\xff",),
    ("texts", features.BYTES, (2,)): (b"a", b"b"),
    ("rows", features.FLOAT, (2, 3)): (1.0,) * 6,
    ("lists", features.INT64, (2, 3)): (1, 2, 3, 4, 5, 6),
    ("nan", features.FLOAT, ()): (float("nan"),),
}


KINDS = (features.INT64, features.FLOAT, features.BYTES)


@case_tables.each_case("what, kind, shape", itertools.product(RETURNED, KINDS, ((), (2,), (2, 3))))
def test_values_are_of_the_type_and_shape_of_the_config(what: str, kind: str, shape: tuple[int, ...]) -> None:
    found = [image for _, image in run(function("returns", kind, shape, what=what))]
    if what == "numpy" and (kind, shape) == (features.INT64, ()):
        # batches of 3, 3 and 1
        assert [image.computed[0] for image in found] == [packed(kind, each) for each in (0, 1, 2, 0, 1, 2, 0)]
    elif (values := STORED.get((what, kind, shape))) is not None:
        assert {image.computed for image in found} == {(packed(kind, *values),)}
    else:
        assert {image.reason for image in found} == {elements.Reason.FUNCTION}
        assert all(f"expected {kind} {list(shape)} for each of 1 images" in image.detail for image in found), found


@case_tables.each_case("encode", ["keep", "jpeg", "png", "webp", "raw", "int64_list", "float_list"])
def test_function_sees_the_pixels_that_are_stored(encode: str) -> None:
    policy = ImagePolicy(encode=encode, color="gray" if encode == "png" else "keep")
    ref = elements.ImageRef("0.png", "/0.png")
    image = policy.prepare(FILES[0])
    code = user_code.find("features.functions x", "tests.user_functions:Levels", version="1")
    feature = features.Feature("x", "functions/x", features.INT64, False)
    made = feature_functions.FeatureFunctions((feature_functions.FeatureFunction(feature, code, 4),))
    user_functions.seen.clear()
    list(made.add_to([(ref, image)]))
    (seen,) = user_functions.seen
    assert seen.shape == (6, 8, image.channels)
    if encode in ("keep", "raw", "int64_list", "float_list"):
        plain = dataclasses.replace(policy, encode="raw").prepare(FILES[0])
        assert seen.tobytes() == plain.data


def test_image_that_cannot_be_decoded_is_rejected() -> None:
    image: checked_image.Image = prepare.AS_IT_IS.prepare(FILES[0])
    broken = image._replace(data=image.data[:60])
    ((_, found),) = run(function("widths"), given=[(elements.ImageRef("0.png", "/0.png"), broken)])
    assert found.reason is elements.Reason.UNDECODABLE
