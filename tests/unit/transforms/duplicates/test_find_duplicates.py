from __future__ import annotations

import collections
import functools
import random
from collections.abc import Sequence

import apache_beam as beam
import hypothesis
import numpy as np
import pytest
from apache_beam.options import pipeline_options
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements
from imagebeam.transforms.duplicates import find_duplicates
from imagebeam.transforms.elements import Duplicate
from imagebeam.transforms.shard import image_hashes
from imagebeam.transforms.shard.image_hashes import DuplicateSettings, HashedImage

REPORT_BOTH = DuplicateSettings("report", "report", 4)


def image(key: str, content: int, picture: int | None = None, split: str = "train") -> HashedImage:
    hashed = b"" if picture is None else picture.to_bytes(8, "big")
    return HashedImage(content.to_bytes(16, "big"), hashed, split, key, f"/data/{key}")


def crowd(seed: int, num_images: int = 400) -> list[HashedImage]:
    """Returns images in three splits, of which many are alike; some keys are no UTF-8, some images have no picture."""
    rng = random.Random(seed)
    found: list[HashedImage] = []
    for index in range(num_images):
        content, picture = rng.getrandbits(128), rng.getrandbits(64)
        kind = rng.randrange(5)
        if found and kind < 3:
            other = rng.choice(found)
            picture = int.from_bytes(other.picture or bytes(8), "big")
            if kind == 0:
                content = int.from_bytes(other.content, "big")
            if kind == 2:
                picture ^= sum(1 << bit for bit in rng.sample(range(64), rng.randint(1, 6)))
        if kind == 3 and rng.random() < 0.2:
            picture = 0
        key = f"{rng.randrange(10**6)}-{index}{chr(0xDCFF) if index % 10 == 0 else ''}.jpg"
        found.append(image(key, content, picture, rng.choice(["train", "train", "test", "validation"])))
    by_content = {each.content: each for each in found}
    return [each._replace(picture=by_content[each.content].picture) for each in found]


def find_plainly(images: Sequence[HashedImage], settings: DuplicateSettings) -> list[Duplicate]:
    """Returns what FindDuplicates must yield, by comparing all pairs."""
    found: list[Duplicate] = []
    images = sorted(images, key=settings.order_of)
    ranks: dict[bytes, int] = {}  # of hashes: the smallest of all images with it
    for each in images:
        ranks[each.picture] = min(ranks.get(each.picture, 1 << 64), settings.rank_of(each))
    if settings.exact != "off":
        distinct: dict[bytes, HashedImage] = {}
        for each in images:
            first = distinct.setdefault(each.content, each)
            if first is not each:
                found.append(pair("exact", 0, each, first))
        images = list(distinct.values())
    if settings.near != "off":
        groups: dict[bytes, list[HashedImage]] = collections.defaultdict(list)
        for each in images:
            if each.picture:
                groups[each.picture].append(each)
        order = sorted(groups, key=lambda picture: ranks[picture])
        for index, picture in enumerate(order):
            near = (other for other in order[:index] if bits(other, picture) <= settings.near_distance)
            other = next(near, picture)
            first = groups[other][0]
            found += [pair("near", bits(other, picture), each, first) for each in groups[picture] if each != first]
    return found


def bits(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


def pair(kind: str, distance: int, one: HashedImage, first: HashedImage) -> Duplicate:
    return Duplicate(kind, distance, one.split, one.key, one.uri, first.split, first.key, first.uri)


def blocks(images: Sequence[HashedImage], size: int) -> list[bytes]:
    return [elements.pack_rows(images[start : start + size]) for start in range(0, len(images), size)]


def check(images: Sequence[HashedImage], settings: DuplicateSettings, size: int = 64, bundle_repeat: int = 0) -> None:
    expected = collections.Counter(find_plainly(images, settings))

    def compare(found: Sequence[Duplicate]) -> None:
        counted = collections.Counter(found)
        assert not counted - expected, list((counted - expected).items())[:2]
        assert not expected - counted, list((expected - counted).items())[:2]

    runner = fn_api_runner.FnApiRunner(bundle_repeat=bundle_repeat)
    options = pipeline_options.PipelineOptions(["--direct_num_workers=1"])
    with test_pipeline.TestPipeline(runner=runner, options=options) as pipe:
        packed = pipe | beam.Create(blocks(images, size)).with_output_types(bytes)
        assert_that(packed | find_duplicates.FindDuplicates(settings), compare)


def test_join_finds_what_comparing_all_pairs_finds() -> None:
    for settings in [
        REPORT_BOTH,  # both
        DuplicateSettings("drop"),  # exact
        DuplicateSettings(near="fail", near_distance=0),  # near-0
        DuplicateSettings(near="drop", near_distance=3, keep_in=("validation", "train")),  # near-3-order
        DuplicateSettings("fail", "report", 6, ("train",)),  # both-6-train-first
    ]:
        images = crowd(7)
        assert find_plainly(images, settings)
        check(images, settings)


def test_order_of_the_input_and_bundles_do_not_matter() -> None:
    for seed, size, bundle_repeat in [(1, 7, 0), (2, 1000, 2)]:
        images = crowd(11, 200)
        random.Random(seed).shuffle(images)
        check(images, REPORT_BOTH, size, bundle_repeat)


def test_many_black_images_make_a_row_each() -> None:
    images = [image(f"{index:05d}.jpg", index, 0, "test" if index == 700 else "train") for index in range(1500)]
    found = find_plainly(images, REPORT_BOTH)
    assert len(found) == 1499 and {each.first_key for each in found} == {"00700.jpg"}
    check(images, REPORT_BOTH)


def test_nothing_is_found_among_different_images() -> None:
    check([image(f"{index}.jpg", index, elements.hash64(str(index), 0, b"test")) for index in range(50)], REPORT_BOTH)
    check([], REPORT_BOTH)


def test_split_and_then_key_decide_which_image_stays() -> None:
    for splits, keep_in, stays in [
        (("train", "test"), (), "test"),  # test-before-train
        (("train2012", "val"), (), "val"),  # name-begins-with-train
        (("train", "test"), ("train",), "train"),  # as-configured
        (("test", "validation"), ("validation", "test"), "validation"),  # in-the-order-of-the-config
        (("validation", "test"), (), "validation"),  # otherwise-the-key
    ]:
        settings = DuplicateSettings("drop", keep_in=keep_in)
        images = [image(key, 1, split=split) for key, split in zip("ab", splits)]
        assert min(images, key=settings.order_of).split == stays
        near = min(images, key=settings.rank_of)
        assert near.split == stays or settings.place_of_split(splits[0]) == settings.place_of_split(splits[1])
        assert all(0 <= settings.rank_of(each) < 1 << 64 for each in images)


# ---- match hashes


DISTANCES = range(image_hashes.MAX_DISTANCE + 1)


@functools.cache
def clusters(seed: int, num_centers: int, num_around: int) -> tuple[int, ...]:
    """Returns hashes in crowds: centers, and hashes around each that differ from it in up to 8 bits."""
    rng = random.Random(seed)
    hashes = set()
    for center in (rng.getrandbits(64) for _ in range(num_centers)):
        hashes.add(center)
        for _ in range(num_around):
            hashes.add(center ^ sum(1 << bit for bit in rng.sample(range(64), rng.randint(1, 8))))
    return tuple(hashes)


def find_all(ranked: np.ndarray, distance: int) -> dict[int, int]:
    """Returns the first near hash of each hash that has one before it, by the tables."""
    matches = [find_duplicates.find_firsts(ranked, mask, distance) for mask in find_duplicates.masks_of(distance)]
    found = find_duplicates.first_of_each(np.concatenate([*matches, np.empty(0, find_duplicates.MATCH)]))
    return dict(zip(found["hash"].tolist(), found["first"].tolist()))


def find_firsts_plainly(hashes: list[int], distance: int) -> dict[int, int]:
    """Returns the same by comparing all pairs; `hashes` are in the order of their ranks."""
    found = {}
    for index, one in enumerate(hashes):
        first = next((other for other in hashes[:index] if (one ^ other).bit_count() <= distance), None)
        if first is not None:
            found[one] = first
    return found


def ranked(hashes: list[int]) -> np.ndarray:
    return np.array([(value, rank) for rank, value in enumerate(hashes)], dtype=find_duplicates.RANKED)


@hypothesis.settings(max_examples=40)
@given(st.integers(0, 5), st.sampled_from(DISTANCES), st.randoms(use_true_random=False))
def test_tables_find_what_comparing_all_pairs_finds(seed: int, distance: int, rng: random.Random) -> None:
    hashes = list(clusters(seed, 12, 8))
    rng.shuffle(hashes)
    rows = ranked(hashes)
    rng.shuffle(order := list(range(len(rows))))
    expected = find_firsts_plainly(hashes, distance) if distance else {}
    assert find_all(rows[order], distance) == expected


def test_crowd_larger_than_a_short_run_finds_the_same_firsts() -> None:
    for distance in [2, 4, 6]:
        hashes = sorted(clusters(0, 2, 400), key=lambda value: value % 1009)
        assert find_all(ranked(hashes), distance) == find_firsts_plainly(hashes, distance)


def test_hashes_that_differ_in_so_many_bits_agree_in_a_table() -> None:
    for distance in DISTANCES[1:]:
        masks = find_duplicates.masks_of(distance)
        assert len(set(masks)) == len(masks)
        assert all(mask.bit_count() >= 16 for mask in masks)
        rng = random.Random(distance)
        for _ in range(200):
            differing = sum(1 << bit for bit in rng.sample(range(64), distance))
            assert any(not differing & mask for mask in masks)


def test_part_of_a_table_depends_on_the_key_alone() -> None:
    mask = find_duplicates.masks_of(4)[3]
    hashes = np.array(clusters(1, 500, 1), dtype=np.uint64)
    parts = find_duplicates.parts_of(hashes, mask, 64)
    assert set(parts.tolist()) == set(range(64))
    others = hashes ^ np.uint64(~mask & (1 << 64) - 1)
    assert (find_duplicates.parts_of(others, mask, 64) == parts).all()


def test_bits_are_counted_without_numpys_function(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = list(clusters(2, 5, 8))
    expected = find_all(ranked(hashes), 4)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert find_all(ranked(hashes), 4) == expected
