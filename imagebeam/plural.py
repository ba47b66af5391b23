"""Counts with their nouns, for messages."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Returns a count with its noun: `1 shard`, `1,024 shards`, `2 classes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
