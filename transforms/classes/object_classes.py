"""The classes of objects: how many objects each has, and the vocabulary that is written beside the shards.

Counts are kept by id and name together, `1 cat`: with gaps and several annotation files, neither decides the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

# The format of TensorFlow's object detection: object_detection/protos/string_int_label_map.proto
LABEL_MAP_FILE = "label_map.pbtxt"
COUNTS = "objects"  # in the statistics of a shard


def count(labels: Iterable[int], texts: Iterable[bytes]) -> dict[str, int]:
    """Returns the numbers of the objects of one image, by id and name."""
    counted = Counter(zip(labels, texts))
    return {f"{label} {text.decode('utf-8', 'surrogateescape')}": number for (label, text), number in counted.items()}


def by_name(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts by name, in the order of the ids."""
    totals: Counter[str] = Counter()
    for key in sorted(counts, key=_parse):
        totals[_parse(key)[1]] += counts[key]
    return dict(totals)


def names_by_id(counts: Iterable[Iterable[str]], known: Mapping[int, bytes]) -> dict[int, str]:
    """Returns the name of each class in the order of the ids.

    Args:
        counts: keys of the counts of each split.
        known: classes of the source, which need not occur.
    """
    names = {label: text.decode("utf-8", "surrogateescape") for label, text in known.items()}
    for keys in counts:
        for label, name in map(_parse, keys):
            names.setdefault(label, name)
    return dict(sorted(names.items()))


def label_map(names: Mapping[int, str]) -> bytes:
    """Returns the content of `LABEL_MAP_FILE`."""
    items = (f"item {{\n  id: {label}\n  name: {_quote(name)}\n}}\n" for label, name in names.items())
    return "".join(items).encode("utf-8", "surrogateescape")


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)  # the escapes of JSON are those of protobuf's text


def _parse(key: str) -> tuple[int, str]:
    label, _, name = key.partition(" ")
    return int(label), name
