"""Finds examples in `rejects.jsonl` and `duplicates.jsonl`, however long they are, by a few reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from imagebeam import storage

_PER_REASON = 3
_WINDOW_BYTES = 64 << 10
_MAX_WINDOWS = 8
_MAX_DUPLICATES = 10


class RejectExample(NamedTuple):
    """One image that was turned away."""

    key: str
    uri: str
    detail: str


def find_reject_examples(uri: str) -> dict[str, list[RejectExample]]:
    """Returns up to three rejects of each reason. A rare reason in a long file may not be among them.

    Args:
        uri: address of the file.

    Raises:
        OSError: if it cannot be read; a missing file has no rejects.
    """
    found: dict[str, list[RejectExample]] = {}
    for line in _some_lines(uri):
        try:
            fields = json.loads(line)
            reason, example = fields["reason"], RejectExample(fields["key"], fields["uri"], fields["detail"])
        except (ValueError, KeyError, TypeError, RecursionError):  # edited by hand
            continue
        of_reason = found.setdefault(str(reason), [])
        if len(of_reason) < _PER_REASON:
            of_reason.append(example)
    return dict(sorted(found.items()))


def find_duplicates(uri: str) -> list[dict[str, Any]]:
    """Returns the first lines of `duplicates.jsonl`, those that repeat an image of another split before the others.

    Raises:
        OSError: if the file cannot be read.
    """
    found = []
    for line in _some_lines(uri):
        try:
            fields = json.loads(line)
            crosses = fields["split"] != fields["first_split"]
        except (ValueError, KeyError, TypeError, RecursionError):  # edited by hand
            continue
        found.append((not crosses, fields))
    found.sort(key=lambda each: each[0])
    return [fields for _, fields in found[:_MAX_DUPLICATES]]


def _some_lines(uri: str) -> Iterator[bytes]:
    """Yields the whole lines in windows spread evenly over a file: all lines of a file of up to 512 kiB."""
    store = storage.storage_of(uri)
    try:
        size = store.stat(uri).size
    except FileNotFoundError:
        return
    if size <= _WINDOW_BYTES * _MAX_WINDOWS:
        yield from store.read(uri).splitlines()
        return
    for number in range(_MAX_WINDOWS):
        offset = number * (size - _WINDOW_BYTES) // (_MAX_WINDOWS - 1)
        lines = store.read(uri, offset, _WINDOW_BYTES).split(b"\n")
        yield from lines[1 if number else 0 : -1]
