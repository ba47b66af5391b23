"""Counts with their nouns, sizes with their units and the first names of lists, for messages."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """Returns a count with its noun: `1 shard`, `1,024 shards`, `2 classes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def name_some(names: Sequence[str], most: int = 5) -> str:
    """Returns the first names of a list: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def format_bytes(num_bytes: float) -> str:
    """Returns a size such as `107.1 MB`, in decimal units, as disks are sold and buckets billed."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError
