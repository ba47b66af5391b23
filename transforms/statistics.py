"""What is in the shards: counted while they are written, merged for `statistics.json`."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from transforms import images, references

_RANGES = ("height", "width", "bytes")
_MAX_VALUES = 10_000  # kept of each before they are summed up: a list costs a tenth of three comparisons an image


class StatisticsBuilder:
    """Counts the images of one shard."""

    def __init__(self) -> None:
        self._kinds: collections.Counter[tuple[str, str]] = collections.Counter()
        self._labels: collections.Counter[str] = collections.Counter()
        self._values: dict[str, list[int]] = {name: [] for name in _RANGES}
        self._ranges: dict[str, dict[str, int]] = {name: {} for name in _RANGES}

    def add(self, ref: references.ImageRef, image: images.Image) -> None:
        self._kinds[image.format, image.colorspace] += 1
        for label in ref.classes:
            self._labels[label] += 1
        heights, widths, sizes = self._values.values()
        heights.append(image.height)
        widths.append(image.width)
        sizes.append(len(image.data))
        if len(sizes) == _MAX_VALUES:
            self._sum_up()

    def build(self) -> dict[str, Any]:
        """`{"formats", "colorspaces", "labels": {name: images}, "height", "width", "bytes": {min, max, sum}}`."""
        formats: collections.Counter[str] = collections.Counter()
        colorspaces: collections.Counter[str] = collections.Counter()
        for (image_format, colorspace), count in self._kinds.items():
            formats[image_format] += count
            colorspaces[colorspace] += count
        self._sum_up()
        return {
            "formats": _ordered(formats),
            "colorspaces": _ordered(colorspaces),
            "labels": _ordered(self._labels),
        } | self._ranges

    def _sum_up(self) -> None:
        for name, values in self._values.items():
            if values:
                newest = {"min": min(values), "max": max(values), "sum": sum(values)}
                self._ranges[name] = _merge_ranges([self._ranges[name], newest])
                values.clear()


def merge_statistics(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of several shards together."""
    counters: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    ranges: dict[str, list[Mapping[str, int]]] = {name: [] for name in _RANGES}
    for part in parts:
        for name, value in part.items():
            if name in _RANGES:
                ranges[name].append(value)
            else:
                counters[name].update(value)
    merged: dict[str, Any] = {name: _ordered(counter) for name, counter in counters.items()}
    return merged | {name: _merge_ranges(values) for name, values in ranges.items()}


def _merge_ranges(ranges: Iterable[Mapping[str, int]]) -> dict[str, int]:
    known = [each for each in ranges if each]  # that of no image is empty
    if not known:
        return {}
    return {
        "min": min(each["min"] for each in known),
        "max": max(each["max"] for each in known),
        "sum": sum(each["sum"] for each in known),
    }


def _ordered(counter: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counter.items()))
