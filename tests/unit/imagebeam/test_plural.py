"""Nouns, sizes and lists in messages."""

from __future__ import annotations

from imagebeam import plural


def test_count_has_the_right_ending() -> None:
    given = ((0, "shard"), (1, "shard"), (1024, "shard"), (1, "class"), (2, "class"))
    texts = [plural.count(number, noun) for number, noun in given]
    assert texts == ["0 shards", "1 shard", "1,024 shards", "1 class", "2 classes"]


def test_long_lists_end_in_the_number_of_further_names() -> None:
    texts = [plural.name_some(names, 2) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"], ["x"] * 2002)]
    assert texts == ["", "a", "a, b", "a, b and 1 more", "x, x and 2,000 more"]
