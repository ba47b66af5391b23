"""What is in the shards: counted while they are written, merged for `statistics.json`."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from transforms import images, references

_RANGES = ("height", "width", "bytes")


class StatisticsBuilder:
    """Counts the images of one shard."""

    def __init__(self) -> None:
        self._kinds: collections.Counter[tuple[str, str]] = collections.Counter()
        self._labels: collections.Counter[str] = collections.Counter()
        self._values: dict[str, list[int]] = {name: [] for name in _RANGES}

    def add(self, ref: references.ImageRef, image: images.Image) -> None:
        self._kinds[image.format, image.colorspace] += 1
        if isinstance(ref.label, str):
            self._labels[ref.label] += 1
        heights, widths, sizes = self._values.values()
        heights.append(image.height)
        widths.append(image.width)
        sizes.append(len(image.data))

    def build(self) -> dict[str, Any]:
        """`{"formats", "colorspaces", "labels": {name: images}, "height", "width", "bytes": {min, max, sum}}`."""
        formats: collections.Counter[str] = collections.Counter()
        colorspaces: collections.Counter[str] = collections.Counter()
        for (image_format, colorspace), count in self._kinds.items():
            formats[image_format] += count
            colorspaces[colorspace] += count
        ranges = {
            name: {"min": min(values), "max": max(values), "sum": sum(values)} if values else {}
            for name, values in self._values.items()
        }
        return {
            "formats": _ordered(formats),
            "colorspaces": _ordered(colorspaces),
            "labels": _ordered(self._labels),
        } | ranges


def merge_statistics(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of several shards together."""
    counters: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    ranges: dict[str, list[Mapping[str, int]]] = collections.defaultdict(list)
    for part in parts:
        for name, value in part.items():
            if name in _RANGES:
                ranges[name] += [value] if value else []
            else:
                counters[name].update(value)
    merged: dict[str, Any] = {name: _ordered(counter) for name, counter in counters.items()}
    for name in _RANGES:
        values = ranges[name]
        merged[name] = values and {
            "min": min(value["min"] for value in values),
            "max": max(value["max"] for value in values),
            "sum": sum(value["sum"] for value in values),
        }
    return merged


def _ordered(counter: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counter.items()))
