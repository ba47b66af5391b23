from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms import elements
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.output import recorded_inputs


def make_refs(keys: list[int] | range, **fields: Any) -> list[ImageRef]:
    return [ImageRef(f"cat/{key:07d}.jpg", f"/data/cat/{key:07d}.jpg", 100, 7, **fields) for key in keys]


def checksum_parts(*parts: list[ImageRef]) -> recorded_inputs.ImageChecksums:
    builder = recorded_inputs.ChecksumBuilder(keep_position=False)
    for refs in parts:
        builder.add([elements.columns_of(refs)] if refs else [])
    return builder.build()


def checksum(refs: list[ImageRef], parts: int = 64, seed: int = 0) -> recorded_inputs.ImageChecksums:
    """Returns the checksums of references in random parts, merged in random order."""
    rng = random.Random(seed)
    random_parts: list[list[ImageRef]] = [[] for _ in range(parts)]
    for ref in refs:
        rng.choice(random_parts).append(ref)
    merged = recorded_inputs.NO_IMAGES
    for part in random_parts:
        merged = merged.merge([checksum_parts(part)])
    return merged


def checksum_in_eights(refs: list[ImageRef]) -> recorded_inputs.ImageChecksums:
    """Returns the checksums of references in parts so small that all of them count."""
    parts = (refs[start : start + 8] for start in range(0, len(refs), 8))
    return recorded_inputs.NO_IMAGES.merge(map(checksum_parts, parts))


@given(st.lists(st.lists(st.integers(0, 10**6), max_size=40, unique=True), max_size=80))
def test_parts_together_have_the_checksums_of_each_part_merged(parts: list[list[int]]) -> None:
    refs = [make_refs(keys) for keys in parts]
    together = recorded_inputs.NO_IMAGES.merge([checksum_parts(*refs)])
    assert together == recorded_inputs.NO_IMAGES.merge(map(checksum_parts, refs))


def describe(refs: list[ImageRef], config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "identity": json.dumps([config or {}, {"pillow": "12.1"}]),
        "writer_version": 1,
        "labels": None,
        "listed": len(refs),
        "rejected": {},
        "rejects_digest": 0,
        "checksums": checksum(refs),
    }
    return json.loads(json.dumps(recorded_inputs.describe_inputs(**{**known, **fields})))


SECOND = {"split": {"seed": 1, "fractions": {"train": 0.8, "test": 0.2}}, "output": {"num_shards": 4}}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(describe(make_refs(range(9))), describe(make_refs(range(10))), "1 image added", id="added"),
        pytest.param(describe(make_refs(range(9))), describe(make_refs(range(2))), "7 images removed", id="removed"),
        pytest.param(
            describe(make_refs(range(9))),
            describe([ref._replace(size=8) for ref in make_refs(range(3))] + make_refs(range(5, 10))),
            "1 image added, 2 images removed, 3 images changed",
            id="all-of-it",
        ),
        pytest.param(
            describe(make_refs(range(3))),
            describe(make_refs(range(3), label="dog")),
            "3 images changed",
            id="other-labels",
        ),
        pytest.param(
            describe(make_refs(range(3)), {"label": {"by": "none"}}),
            describe(make_refs(range(3), label="dog"), {}),
            'label.by was "none", is not set',
            id="other-labels-by-the-config",
        ),
        pytest.param(
            describe([], {"output": {"num_shards": 3}}),
            describe([], SECOND),
            "output.num_shards was 3, is 4; split.fractions.test was not set, is 0.2; "
            "split.fractions.train was not set, is 0.8; split.seed was not set, is 1",
            id="config",
        ),
        pytest.param(
            describe([], {"columns": {name: 1 for name in "abcdefg"}}),
            describe([]),
            "columns.a was 1, is not set; columns.b was 1, is not set; columns.c was 1, is not set; "
            "columns.d was 1, is not set; columns.e was 1, is not set; 2 more keys",
            id="many-keys",
        ),
        pytest.param(
            describe([], identity=json.dumps([{}, {"pillow": "12.0"}])),
            describe([]),
            'pillow was "12.0", is "12.1"',
            id="library",
        ),
        pytest.param(
            describe([], identity=json.dumps([{}, {"masks": [2, None]}])),
            describe(
                [], identity=json.dumps([{}, {"masks": [2, [["sky", 0, 0, 0, False], ["edge", 255, 0, 9, True]]]}])
            ),
            "source.masks.colors was not set, is {sky: [0, 0, 0], edge: [255, 0, 9] (ignored)}",
            id="colors-of-masks",
        ),
        pytest.param(
            describe([], identity=json.dumps([{}, {"masks": [1, [[f"c{n}", n, n, n, False] for n in range(2)]]}])),
            describe([], identity=json.dumps([{}, {"masks": [2, [["c0", 0, 0, 0, False]]]}])),
            "masks was 1, is 2; source.masks.colors was {c0: [0, 0, 0], c1: [1, 1, 1]}, is {c0: [0, 0, 0]}",
            id="other-colors-of-masks",
        ),
        pytest.param(
            describe([]),
            describe([], labels=("cat",)),
            "label.vocabulary or label.texts holds other classes",
            id="labels",
        ),
        pytest.param(
            describe([]), describe([], writer_version=2), "this version of imagebeam writes other", id="version"
        ),
        pytest.param(
            describe([]),
            describe([], rejected={"no_label": 1200}, rejects_digest=1),
            "rejected before reading: none then, no_label 1,200 now",
            id="rejects",
        ),
        pytest.param(
            describe([]),
            describe([], rejects_digest=1),
            "other images are rejected before reading",
            id="other-rejects",
        ),
        pytest.param(describe([]), describe([]), "config or images differ", id="nothing-that-is-known"),
        pytest.param({}, describe([]), "config or images differ", id="not-kept"),
        pytest.param({"config": 3}, describe([]), "config or images differ", id="another-form"),
    ],
)
def test_differences_are_named(before: dict[str, Any], now: dict[str, Any], expected: str) -> None:
    assert recorded_inputs.compare_inputs(before, now).startswith(expected)
    if not expected.startswith("this version"):
        assert recorded_inputs.compare_inputs(before, now) == expected


@settings(deadline=None, max_examples=15)
@given(
    removed=st.sets(st.integers(0, 499)), added=st.sets(st.integers(500, 1000)), changed=st.sets(st.integers(0, 499))
)
def test_up_to_a_thousand_images_are_counted(removed: set[int], added: set[int], changed: set[int]) -> None:
    kept = [key for key in range(500) if key not in removed]
    now = [ref._replace(version=8) if int(ref.key[4:11]) in changed else ref for ref in make_refs([*kept, *added])]
    before, after = (describe(refs, checksums=checksum_in_eights(refs)) for refs in (make_refs(range(500)), now))
    counts = {"added": len(added), "removed": len(removed), "changed": len(changed - removed)}
    texts = [f"{count:,} {'image' if count == 1 else 'images'} {what}" for what, count in counts.items() if count]
    assert recorded_inputs.compare_inputs(before, after) == (", ".join(texts) or "config or images differ")


def test_many_images_are_estimated() -> None:
    before, now = describe(make_refs(range(40_000))), describe(make_refs(range(10_000, 60_000)))
    text = recorded_inputs.compare_inputs(before, now)
    assert text.endswith(", 50,000 images listed, 40,000 then")
    about_added, about_removed = text.split(" images added, about ")
    assert 15_000 < int(about_added.removeprefix("about ").replace(",", "")) < 25_000
    assert 7_000 < int(about_removed.split()[0].replace(",", "")) < 13_000


def test_few_of_many_images_are_told_as_such() -> None:
    refs = make_refs(range(40_000))
    whole = checksum(refs)
    places = {entry[:8] for entry in whole.entries}
    other = next(ref for ref in refs if checksum_parts([ref]).entries[0][:8] not in places)
    now = describe([*(ref for ref in refs if ref is not other), other._replace(size=9)])
    expected = "a few of 40,000 images, none of them among the 1,024 or so compared"
    assert recorded_inputs.compare_inputs(describe(refs), now) == expected


@pytest.mark.parametrize("count", [0, 1, 1000, 2500])
def test_checksums_depend_on_the_images_alone_and_stay_few(count: int) -> None:
    refs = make_refs(range(count))
    found = {checksum(refs, parts=1024, seed=seed) for seed in range(3)}
    smallest = min(each.limit for each in found)
    shared = {tuple(entry for entry in each.entries if int.from_bytes(entry[:4], "big") < smallest) for each in found}
    assert len(shared) == 1
    assert min(count, 700) <= len(shared.pop()) <= 1024


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param({"libraries": {"pillow": "12.0"}}, "", id="newer-library"),
        pytest.param({"raw_shape": [2, 2, 1]}, "raw_shape was [2, 2, 1], is not set", id="other-pixels"),
    ],
)
def test_update_goes_on_with_newer_libraries_and_with_nothing_else_that_differs(
    others: dict[str, Any], expected: str
) -> None:
    before = describe([], identity=json.dumps([{}, others]))
    now = describe([], identity=json.dumps([{}, {"libraries": {"pillow": "12.1"}}]))
    assert recorded_inputs.compare_configs(before, now) == expected
