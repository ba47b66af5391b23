from __future__ import annotations

from imagebeam.transforms.elements import Duplicate
from imagebeam.transforms.shard import image_hashes
from imagebeam.transforms.shard.image_hashes import OFF, DuplicateSettings, StoredDuplicates
from tests import error_texts


def duplicate(key: str, split: str, first_key: str, first_split: str) -> Duplicate:
    return Duplicate("exact", 0, split, key, f"/in/{key}", first_split, first_key, f"/in/{first_key}")


STORED = (
    StoredDuplicates(
        "duplicates-00.jsonl",
        {("exact", "train", "train"): 1000, ("near", "train", "test"): 2},
        tuple(duplicate(f"{index}.jpg", "train", "first.jpg", "train") for index in range(3)),
    ),
    StoredDuplicates(
        "duplicates-01.jsonl",
        {("exact", "train", "train"): 234, ("exact", "train", "test"): 1},
        (duplicate("caf\udce9.jpg", "train", "t.jpg", "test"),),
    ),
)


def test_kind_without_duplicates_has_an_empty_mapping() -> None:
    for settings, expected in [
        (OFF, {}),  # off
        (DuplicateSettings("report"), {"exact": {}}),  # exact
        (DuplicateSettings("drop", "fail"), {"exact": {}, "near": {}}),  # both
    ]:
        counts = image_hashes.count_duplicates(settings, ())
        assert counts == expected
        assert all(image_hashes.describe_counts(by_split) == "0 images" for by_split in counts.values())
        assert image_hashes.find_refusal(settings, counts) is None


def test_refusal_names_leaks_between_splits_first() -> None:
    settings = DuplicateSettings("fail", "report")
    error = image_hashes.find_refusal(settings, image_hashes.count_duplicates(settings, STORED), STORED)
    error_texts.check(error, "duplicates-found")


def test_only_kinds_that_fail_refuse() -> None:
    settings = DuplicateSettings("report", "fail")
    counts = image_hashes.count_duplicates(settings, STORED)
    assert "look like others, duplicates.near is fail" in str(image_hashes.find_refusal(settings, counts))
    assert image_hashes.find_refusal(settings, {**counts, "near": {}}) is None
