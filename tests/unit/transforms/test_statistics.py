from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms import statistics
from transforms.images import Image
from transforms.references import ImageRef

images = st.builds(
    Image,
    data=st.binary(max_size=3),
    format=st.sampled_from(["jpeg", "png"]),
    height=st.integers(1, 100),
    width=st.integers(1, 100),
    channels=st.just(3),
    colorspace=st.sampled_from(["RGB", "GRAY"]),
)
labelled = st.lists(st.tuples(st.sampled_from(["cat", "dog", "caf\udce9"]), images), max_size=12)

NOTHING = {
    "formats": {},
    "colorspaces": {},
    "labels": {},
    "shorter_side": {},
    "aspect_ratio": {},
    "height": {},
    "width": {},
    "bytes": {},
    "pixels": {},
}


def count(members: list[tuple[str | int | None, Image]]) -> dict[str, object]:
    builder = statistics.StatisticsBuilder()
    for label, image in members:
        builder.add(ImageRef("k", "/k", label=label), image)
    return builder.build()


def test_build_counts_kinds_and_ranges() -> None:
    members = [
        ("dog", Image(b"12", "png", 7, 30, 4, "RGBA")),
        ("cat", Image(b"123", "jpeg", 5, 20, 3, "RGB")),
        ("dog", Image(b"1234", "jpeg", 9, 10, 1, "GRAY")),
    ]
    counted = count(members)
    assert counted == {
        "formats": {"jpeg": 2, "png": 1},
        "colorspaces": {"GRAY": 1, "RGB": 1, "RGBA": 1},
        "labels": {"cat": 1, "dog": 2},
        "shorter_side": {"4-7": 2, "8-15": 1},
        "aspect_ratio": {"1.05-1.25": 1, ">=2": 2},
        "pixels": {},
        "height": {"min": 5, "max": 9, "sum": 21},
        "width": {"min": 10, "max": 30, "sum": 60},
        "bytes": {"min": 2, "max": 4, "sum": 9},
    }
    assert list(counted["labels"]) == ["cat", "dog"]  # sorted, so that the same images give the same file


@pytest.mark.parametrize(
    "label", [pytest.param(3, id="int"), pytest.param(2.5, id="float"), pytest.param(None, id="none")]
)
def test_build_of_images_without_class_counts_no_labels(label: int | float | None) -> None:
    assert count([(label, Image(b"", "png", 1, 1, 3, "RGB"))])["labels"] == {}


def test_build_of_nothing_has_empty_ranges() -> None:
    assert count([]) == NOTHING


@given(st.lists(labelled, max_size=4))
def test_merge_of_parts_is_the_statistics_of_the_whole(parts: list[list[tuple[str, Image]]]) -> None:
    merged = statistics.merge_statistics(map(count, parts))
    assert NOTHING | merged == count([member for part in parts for member in part])


@given(labelled)
def test_build_of_large_shard_sums_up_in_between_and_keeps_few_values(members: list[tuple[str, Image]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_MAX_VALUES", 3)
        builder = statistics.StatisticsBuilder()
        for label, image in members:
            builder.add(ImageRef("k", "/k", label=label), image)
            assert all(len(values) < 3 for values in builder._values.values())
        assert builder.build() == count(members)
    assert builder.build() == count(members)  # by lists that are never full
