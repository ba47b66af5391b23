"""Nouns have the ending that fits their number."""

from __future__ import annotations

import pytest

from imagebeam import plural


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        pytest.param(0, "shard", "0 shards", id="none"),
        pytest.param(1, "shard", "1 shard", id="one"),
        pytest.param(1024, "shard", "1,024 shards", id="many"),
        pytest.param(1, "class", "1 class", id="one-class"),
        pytest.param(2, "class", "2 classes", id="two-classes"),
    ],
)
def test_count_has_the_right_ending(number: int, noun: str, text: str) -> None:
    assert plural.count(number, noun) == text
