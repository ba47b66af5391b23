"""Counts what is in the shards while they are written; merges and describes the counts for `statistics.json`."""

from __future__ import annotations

import bisect
import collections
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imagebeam.transforms import elements
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, pixel_type, pixels, png_structure

_RANGES = ("height", "width", "bytes")
_PIXELS = "pixels"
_MAX_IMAGES = 1000  # collected before they are counted column by column: a fifth of the time of counting each

_ASPECT_RATIOS = (0.5, 0.67, 0.8, 0.95, 1.05, 1.25, 1.5, 2.0)  # width / height; each is the lower bound of a bin
_ASPECT_BINS = (
    f"<{_ASPECT_RATIOS[0]:g}",
    *(f"{lower:g}-{upper:g}" for lower, upper in itertools.pairwise(_ASPECT_RATIOS)),
    f">={_ASPECT_RATIOS[-1]:g}",
)
# Each from 2**(bits - 1) to 2**bits - 1.
_SIDE_BINS = tuple(f"{1 << bits >> 1}-{(1 << bits) - 1}" for bits in range(1, 31))
_CHANGES = ("turned", "reencoded", "misnamed")  # fields of elements.Measures
_DROPPED = "dropped_objects"
_BETWEEN = "+"  # of the formats of the images of one example
_NUM_DARK = 10  # dark images that are named, of all shards of a split
# The names of all bins, ascending; sides are in pixels, the ratio is width / height.
BINS: Mapping[str, Sequence[str]] = {"shorter_side": _SIDE_BINS, "aspect_ratio": _ASPECT_BINS}


def measure(uri: str, image: checked_image.Image, objects: dict[str, int] | None = None) -> elements.Measures:
    """Returns what is counted of the image in a file.

    Args:
        uri: address of the file.
        image: as it is stored.
        objects: see class_names.count; None where no objects are known.
    """
    sums = image.sums
    return elements.Measures(
        _BETWEEN.join(sorted({each.format for each in (image, *image.extra_images)})),
        image.colorspace,
        image.orientation,
        image.height,
        image.width,
        len(image.data),
        str(image.turned) if image.turned != checked_image.UPRIGHT else "",
        image.reencoded,
        misname(uri, image.source_format or image.format),
        None if sums is None else (sums.num_pixels, sums.totals, sums.squares),
        objects,
    )


def misname(uri: str, format: str) -> str:
    """Returns "png named jpg" where the name of a file states another format; "" where it does not."""
    if format == image_formats.RAW:
        return ""
    extension = image_formats.extension_of(uri)
    named = image_formats.BY_EXTENSION.get(extension, format)
    return "" if named == format else f"{format} named {extension}"


class StatisticsMerger:
    """Adds up the statistics of shards one by one, in any order."""

    def __init__(self) -> None:
        self._counters: dict[str, collections.Counter[str]] = {}
        self._ranges: dict[str, dict[str, int]] = {name: {} for name in _RANGES}
        self._pixels: dict[str, Any] = {}

    def add(self, part: Mapping[str, Any]) -> None:
        """Adds the statistics of a shard."""
        for name, value in part.items():
            if name in _RANGES:
                self._ranges[name] = _add_ranges(self._ranges[name], value)
            elif name == _PIXELS:
                self._pixels = _add_pixels(self._pixels, value)
            else:
                self._counters.setdefault(name, collections.Counter()).update(value)

    def result(self) -> dict[str, Any]:
        """Returns the merged statistics in the form of those of one shard."""
        counted = {name: _ordered(name, counter) for name, counter in self._counters.items()}
        return counted | self._ranges | {_PIXELS: self._pixels}


class StatisticsBuilder:
    """Counts the images of one shard."""

    def __init__(self) -> None:
        self._images: list[elements.Measures] = []  # not counted yet
        self._classes: list[Iterable[str]] = []  # classes of these images
        self._counted = StatisticsMerger()
        self._counted.add({name: {} for name in ("formats", "colorspaces", "orientations", "labels", *BINS)})
        self.dark = DarkImages()

    def add(self, classes: Iterable[str], image: elements.Measures) -> None:
        """Counts one image with its classes."""
        self._images.append(image)
        self._classes.append(classes)
        if len(self._images) == _MAX_IMAGES:
            self._count()

    def add_dropped(self, objects: Mapping[str, int]) -> None:
        """Counts objects of an image that are left out of its record, by kind."""
        if objects:
            self._counted.add({_DROPPED: objects})

    def build(self) -> dict[str, Any]:
        """Returns the counts in the form of JSON.

        `{"formats", "colorspaces", "orientations", "labels", "shorter_side", "aspect_ratio": {name: images}, "height",
        "width", "bytes": {min, max, sum}, "pixels": {"images", "num_pixels", "totals", "squares"}}`. Orientations are
        EXIF's, 2 to 8, which ask for a turn; upright images are left out. Where there are any: "reencoded", images that
        were encoded again although bytes are kept, by cause; "turned", images that were turned upright, by their
        orientation; "misnamed", images whose name states another format, such as "png named jpg"; "dropped_objects",
        objects that are left out of the records, by kind; "wide", "dark" and "dark_files": see `DarkImages.counts`;
        "objects", by the id and name of their class.
        """
        self._count()
        return merge_statistics([self._counted.result(), self.dark.counts()])

    def _count(self) -> None:
        if not self._images:
            return
        columns = dict(zip(elements.Measures._fields, zip(*self._images)))
        bins: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in BINS}
        for (height, width), count in collections.Counter(zip(columns["height"], columns["width"])).items():
            bins["shorter_side"][_SIDE_BINS[min(height, width).bit_length() - 1]] += count
            bins["aspect_ratio"][_ASPECT_BINS[bisect.bisect(_ASPECT_RATIOS, width / height)]] += count
        formats: collections.Counter[str] = collections.Counter()
        for joined, count in collections.Counter(columns["format"]).items():
            formats.update(dict.fromkeys(joined.split(_BETWEEN), count))
        turns = (str(each) for each in columns["orientation"] if each != checked_image.UPRIGHT)
        self._counted.add(
            {
                "formats": formats,
                "colorspaces": collections.Counter(columns["colorspace"]),
                "orientations": collections.Counter(turns),
                "labels": collections.Counter(itertools.chain.from_iterable(self._classes)),
                **bins,
            }
        )
        for name in _CHANGES:
            if changes := collections.Counter(filter(None, columns[name])):
                self._counted.add({name: changes})
        for name, column in zip(_RANGES, (columns["height"], columns["width"], columns["num_bytes"])):
            self._counted.add({name: {"min": min(column), "max": max(column), "sum": sum(column)}})
        for objects in columns["objects"]:
            if objects is not None:
                self._counted.add({class_names.COUNTS: objects})
        for sums in columns["sums"]:
            if sums is not None:
                number, totals, squares = sums
                part = {"images": 1, "num_pixels": number, "totals": [*totals], "squares": [*squares]}
                self._counted.add({_PIXELS: part})
        self._images.clear()
        self._classes.clear()


def merge_statistics(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the statistics of several shards."""
    merger = StatisticsMerger()
    for part in parts:
        merger.add(part)
    return merger.result()


def subtract_statistics(merged: Mapping[str, Any], removed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the statistics of the images that remain when some are removed.

    All counts and sums are exact. Where a least or greatest value belonged to a removed image, it stays: the next
    conversion or compaction of all images finds the new one.

    Args:
        merged: of all images.
        removed: of those that are removed.
    """
    found: dict[str, Any] = {}
    for name, value in merged.items():
        gone = removed.get(name, {})
        if name in _RANGES:
            found[name] = value | ({"sum": value["sum"] - gone["sum"]} if gone else {})
        elif name == _PIXELS:
            found[name] = _add_pixels(value, gone, sign=-1)
        else:
            left = {each: count - gone.get(each, 0) for each, count in value.items()}
            remaining = {each: count for each, count in left.items() if count}
            if remaining or name not in _CHANGES:
                found[name] = remaining
    if not found.get("formats"):  # none remains
        found |= {name: {} for name in (*_RANGES, _PIXELS) if name in found}
    return found


def describe_statistics(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the statistics of a split in the form of `statistics.json`.

    Beside the counts it has `"class_weights": {name: weight}` if there are classes, and `"pixels": {"images", "mean",
    "std"}` by channel (red, green, blue) if the pixels were summed up.
    """
    described = {name: value for name, value in merged.items() if name != _PIXELS}
    if labels := merged.get("labels"):
        described["class_weights"] = class_weights(labels)
    if FILES in merged:
        described[FILES] = dict(itertools.islice(merged[FILES].items(), _NUM_DARK))
    if class_names.COUNTS in merged:
        described[class_names.COUNTS] = class_names.by_name(merged[class_names.COUNTS])
    if sums := merged.get(_PIXELS):
        described[_PIXELS] = {"images": sums["images"]} | _mean_and_std(sums)
    return described


def class_weights(counts: Mapping[str, int]) -> dict[str, float]:
    """Returns weights that give every class the same total weight: labels / (classes * labels of the class).

    This is "balanced" of scikit-learn. A class without an image gets no weight and is not counted.
    """
    total = sum(counts.values())
    return {name: total / (len(counts) * count) for name, count in counts.items()}


def _mean_and_std(sums: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns mean and population deviation over all pixels of all images, each pixel with the same weight.

    Computes with integers up to the last step: a difference of large floats would lose the significant digits.
    """
    number = sums["num_pixels"]
    variances = [
        (number * square - total * total) / number**2 for total, square in zip(sums["totals"], sums["squares"])
    ]
    return {"mean": [total / number for total in sums["totals"]], "std": [math.sqrt(each) for each in variances]}


def _add_ranges(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    if not one or not other:  # empty without an image
        return one or other
    total = one["sum"] + other["sum"]
    return {"min": min(one["min"], other["min"]), "max": max(one["max"], other["max"]), "sum": total}


def _add_pixels(one: dict[str, Any], other: dict[str, Any], sign: int = 1) -> dict[str, Any]:
    """Adds sums of pixels, or subtracts them; lists are by channel."""
    if not one or not other:
        return one or other
    numbers = {name: one[name] + sign * other[name] for name in ("images", "num_pixels")}
    channels = {name: [x + sign * y for x, y in zip(one[name], other[name])] for name in ("totals", "squares")}
    return (numbers | channels) if numbers["images"] else {}


def _ordered(name: str, counter: Mapping[str, int]) -> dict[str, int]:
    """Orders the counts by name, or bins by their bounds."""
    order = BINS.get(name) or sorted(counter)
    return {each: counter[each] for each in order if each in counter}


WIDE, COUNTS, FILES = "wide", "dark", "dark_files"  # in statistics.json
NUM_FILES = 3  # that are named, of a shard
_NUM_DECODED = 4  # in a shard: PNGs whose bytes are kept are decoded only here
_MAX_DECODED_PIXELS = 1 << 24
_LOWEST_WHITE = 255  # least value of image.white_level
_MARGIN = 4  # an image is dark if its largest number is at most a quarter of the one that becomes white


class DarkImages:
    """Counts images of 16 bits, and gray ones that are nearly black with 8: their numbers have 10, 12 or 14 bits."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._files: collections.Counter[str] = collections.Counter()
        self._wide: collections.Counter[str] = collections.Counter()
        self._num_decoded = 0

    def add(self, key: str, image: checked_image.Image, white_level: int | None) -> None:
        """Counts an image of 16 bits as it is stored, and whether it is dark; of kept PNGs only the first are read.

        Args:
            key: of the image.
            image: as it is stored.
            white_level: the number that becomes white; None if readers get all 16 bits.
        """
        if white_level is None or (image.highest is None and image.dtype == pixel_type.UINT8):
            return
        if white_level == pixels.WHITE:
            self._wide[image.source_format or image.format] += 1
        highest = image.highest if image.highest is not None else self._highest_kept(image)
        if highest is None or white_level == _LOWEST_WHITE or not 0 < highest * _MARGIN <= white_level:
            return
        bits = highest.bit_length()
        self._counts[f"{image.source_format or image.format} up to {bits} bits"] += 1
        if len(self._files) < NUM_FILES:
            self._files[key] = highest

    def _highest_kept(self, image: checked_image.Image) -> int | None:
        """Returns the largest number of a PNG of 16 bits whose bytes are kept; None of other images."""
        if image.format != image_formats.PNG or not png_structure.is_wide_gray(image.data):
            return None
        if self._num_decoded == _NUM_DECODED or image.height * image.width > _MAX_DECODED_PIXELS:
            return None
        self._num_decoded += 1
        try:
            return pixels.find_highest(pillow_decoder.decode(image))
        except checked_image.BadImageError:  # only image.check: decode finds and rejects it
            return None

    def counts(self) -> dict[str, collections.Counter[str]]:
        """Returns how many there are by format and bits, and the largest numbers of the first ones by key; {} if none.

        {"wide": {"tiff": 9}, "dark": {"tiff up to 12 bits": 7}, "dark_files": {"scans/a.tif": 4021}}
        """
        found = {WIDE: self._wide, COUNTS: self._counts, FILES: self._files}
        return {name: counter for name, counter in found.items() if counter}
