"""Records what a dataset is made of in a few kilobytes: enough to say how the inputs of two runs differ."""

from __future__ import annotations

import base64
import itertools
import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from imagebeam import plural, storage
from imagebeam.transforms import elements, hashing
from imagebeam.transforms.output import output_paths

_COLORS = "source.masks.colors"  # key of the config
NO_INPUTS: Mapping[str, Any] = {}  # of a dataset written before inputs were recorded

_ALL = 1 << 32  # the limit that includes every image
_ENTRY = struct.Struct(">IIII")  # place in a fixed order; checksums of the key, the file, and the source's other values
_MAX_IMAGES = 1024  # 16 kB; differences are counted up to this many images, and estimated above
_MAX_IMAGES_OF_PART = 8  # of one of 1,024 intervals of references: to checksum all images costs as much as to rank them
_SPREAD = 0x9E3779B1  # odd: spreads checksums of keys that differ in a digit over the whole order
MASKS = "masks"  # among the facts: how masks are stored, and the colors of their classes or None
LIBRARIES = "libraries"  # versions of what encodes images, among the facts outside the config
_MAX_NAMED = 5


class ImageChecksums(NamedTuple):
    """Checksums of the images whose place in a fixed order is below `limit`; the place depends on the key alone.

    Two datasets keep the checksums of the same images, as far as both hold them, so that the difference between the
    checksums represents the difference between the datasets.
    """

    limit: int
    entries: tuple[bytes, ...]  # sorted

    def merge(self, others: Iterable[ImageChecksums]) -> ImageChecksums:
        """Returns the checksums of several disjoint sets of images together."""
        every = [self, *others]
        limit = min(each.limit for each in every)
        entries = sorted(entry for each in every for entry in each.entries if _place(entry) < limit)
        return _truncate(limit, entries, _MAX_IMAGES)


NO_IMAGES = ImageChecksums(_ALL, ())


class ChecksumBuilder:
    """Checksums the images of some parts of a dataset: as if each part was checksummed alone, and all were merged."""

    def __init__(self, keep_position: bool):
        self._keep_position = keep_position  # whether the row in the source counts: where the row decides the order
        self._limit = _ALL
        self._chosen: list[tuple[int, elements.ImageRef]] = []  # place, reference

    def add(self, refs: Iterable[elements.RefColumns]) -> None:
        """Adds a part, in one or more sets."""
        crc32 = zlib.crc32  # runs once per image: 0.5 us
        refs = list(refs)
        places = [[crc32(key) * _SPREAD & _ALL - 1 for key in hashing.encode_keys(columns.key)] for columns in refs]
        every_place = sorted(itertools.chain.from_iterable(places))
        if len(every_place) > _MAX_IMAGES_OF_PART:
            self._limit = min(self._limit, every_place[_MAX_IMAGES_OF_PART])
        self._chosen += (
            (place, elements.new_ref(column[index] for column in columns))
            for places_of_set, columns in zip(places, refs)
            for index, place in enumerate(places_of_set)
            if place < self._limit
        )

    def build(self) -> ImageChecksums:
        """Returns the checksums of the images that were added."""
        entries = [self._entry(place, ref) for place, ref in self._chosen if place < self._limit]
        return ImageChecksums(self._limit, tuple(sorted(entries)))

    def _entry(self, place: int, ref: elements.ImageRef) -> bytes:
        mask = ref.mask and (ref.mask.uri.rpartition("/")[2], ref.mask.size, ref.mask.version)
        file: tuple[Any, ...] = (ref.uri.rpartition("/")[2], ref.size, ref.version, ref.offset, ref.length, mask)
        if ref.further:
            file += tuple(image.facts for image in ref.further)
        position = ref.position if self._keep_position else 0
        row = (ref.split, ref.label, ref.group, ref.columns, ref.expected, position)
        return _ENTRY.pack(place, _checksum(ref.key), _checksum(file), _checksum(row))


def _truncate(limit: int, entries: list[bytes], most: int) -> ImageChecksums:
    if len(entries) > most:
        limit = _place(entries[most])
        entries = [entry for entry in entries[:most] if _place(entry) < limit]
    return ImageChecksums(limit, tuple(entries))


def _place(entry: bytes) -> int:
    return int(_ENTRY.unpack(entry)[0])


def _checksum(facts: Any) -> int:
    return zlib.crc32(repr(facts).encode("utf-8", "backslashreplace"))


def describe_inputs(
    identity: str,
    writer_version: int,
    labels: Any,
    listed: int,
    rejected: Mapping[str, int],
    rejects_digest: int,
    checksums: ImageChecksums,
) -> dict[str, Any]:
    """Returns everything that decides the fingerprint of a dataset, as values for JSON.

    Args:
        identity: JSON of a list: the part of the config that decides the shards, and the other facts that do.
        writer_version: raised when a release writes other bytes for the same input.
        labels: the content of the label files.
        listed: number of images.
        rejected: number of images rejected before any was read, by reason.
        rejects_digest: of those images.
        checksums: of the images.
    """
    config, others = _decode(identity)
    return {
        "writer": writer_version,
        "config": config,
        "others": others,
        "labels": _checksum(labels),
        "listed": listed,
        "rejected": dict(rejected),
        "rejects": f"{rejects_digest:x}",
        "sample_limit": checksums.limit,  # the names under which catalogs store them
        "sample": base64.b64encode(b"".join(checksums.entries)).decode(),
    }


def are_of(inputs: Mapping[str, Any], identity: str) -> bool:
    """Returns whether a dataset with these inputs was written with the config of `identity`, and equal versions.

    True where one of the two is not known: "" and NO_INPUTS.
    """
    if not identity or not inputs:
        return True
    config, others = _decode(identity)
    return bool(inputs.get("config") == config and inputs.get("others") == others)


def _decode(identity: str) -> tuple[Any, Any]:
    decoded = json.loads(identity)
    return (decoded[0], decoded[1]) if isinstance(decoded, list) else (decoded, {})


def write_inputs(staging: str, plan: elements.DatasetPlan) -> None:
    """Writes into the staging folder what the dataset is made of, for a later run that cannot use the shards there."""
    store = storage.storage_of(staging)
    store.make_directories(staging)
    uri = storage.join(staging, output_paths.INPUTS_FILE)
    store.write_whole(uri, json.dumps(plan.inputs).encode(), durable=False)


def read_inputs(staging: str) -> Mapping[str, Any]:
    """Reads what the dataset in a staging folder is made of; NO_INPUTS if its run did not record it."""
    uri = storage.join(staging, output_paths.INPUTS_FILE)
    try:
        found = json.loads(storage.storage_of(uri).read(uri))
    except (FileNotFoundError, ValueError):
        return NO_INPUTS
    return found if isinstance(found, dict) else NO_INPUTS


def compare_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the inputs of an earlier run differ from those of this one, as far as that is known."""
    try:
        return "; ".join(_differences(before, now)) or "config or images differ"
    except (KeyError, TypeError, ValueError, AttributeError, struct.error):  # recorded by another version
        return "config or images differ"


def compare_configs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the configs of two runs differ in what decides what an example is; "" if they do not.

    Versions of libraries that encode images do not count: a newer one would end the nightly updates of a dataset.
    """
    try:
        others = (
            {name: each["others"][name] for name in each["others"] if name != LIBRARIES} for each in (before, now)
        )
        texts = _compare_settings(before["config"], now["config"]) + _compare_settings(*map(_by_key, others))
    except (KeyError, TypeError, AttributeError):  # recorded by another version
        return "another version of imagebeam recorded it"
    if before.get("writer") != now["writer"]:
        texts.append("this version of imagebeam writes other bytes")
    return "; ".join(texts)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    config = _compare_settings(before["config"], now["config"])
    texts = config[:_MAX_NAMED] + ([f"{len(config) - _MAX_NAMED:,} more keys"] if len(config) > _MAX_NAMED else [])
    texts += _compare_settings(_by_key(before["others"]), _by_key(now["others"]))
    if before["labels"] != now["labels"]:
        texts.append("label.vocabulary or label.texts holds other classes")
    if before["writer"] != now["writer"]:
        texts.append("this version of imagebeam writes other bytes")
    texts += _compare_images(before, now, with_rows=before["config"] == now["config"])
    if before["rejected"] != now["rejected"]:
        was, is_ = (_describe_counts(each["rejected"]) for each in (before, now))
        texts.append(f"rejected before reading: {was} then, {is_} now")
    elif before["rejects"] != now["rejects"]:
        texts.append("other images are rejected before reading")
    if not texts and min(before["sample_limit"], now["sample_limit"]) < _ALL:
        texts.append(f"a few of {now['listed']:,} images, none of them among the {_MAX_IMAGES:,} or so compared")
    return texts


def _compare_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    was, is_ = dict(_flatten(before)), dict(_flatten(now))
    return [
        f"{name} was {_describe(was, name)}, is {_describe(is_, name)}"
        for name in sorted(was.keys() | is_.keys())
        if was.get(name) != is_.get(name) or (name in was) != (name in is_)
    ]


def _by_key(others: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns facts with the colors of masks under their key in the config."""
    if not others.get(MASKS):
        return others
    version, colors = others[MASKS]
    named = {} if colors is None else {_COLORS: _Colors(colors)}
    return {**others, MASKS: version, **named}


class _Colors(list[Any]):
    """Colors of classes: of each the name, red, green, blue, and whether it is ignored."""

    def __str__(self) -> str:
        shown = (
            f"{name}: [{red}, {green}, {blue}]{' (ignored)' if is_ignored else ''}"
            for name, red, green, blue, is_ignored in self
        )
        return f"{{{', '.join(shown)}}}"


def _flatten(settings: Mapping[str, Any], below: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{below}{name}.")
        else:
            yield f"{below}{name}", value


def _describe(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "not set"
    return str(settings[name]) if name == _COLORS else json.dumps(settings[name])


def _describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _compare_images(before: Mapping[str, Any], now: Mapping[str, Any], with_rows: bool) -> list[str]:
    """Counts the images added, removed and changed: exact if both datasets kept the checksums of all images."""
    limit = min(before["sample_limit"], now["sample_limit"])
    was, is_ = (_decode_checksums(each["sample"], limit) for each in (before, now))
    both = was.keys() & is_.keys()
    counts = {
        "added": len(is_.keys() - both),
        "removed": len(was.keys() - both),
        "changed": sum(was[key][: 2 if with_rows else 1] != is_[key][: 2 if with_rows else 1] for key in both),
    }
    if limit == _ALL:
        found = [f"{plural.count(count, 'image')} {what}" for what, count in counts.items() if count]
    else:
        scale = _ALL / limit
        most = {"added": now["listed"], "removed": before["listed"], "changed": min(now["listed"], before["listed"])}
        found = [
            f"about {min(_round(count * scale), most[what]):,} images {what}" for what, count in counts.items() if count
        ]
        if before["listed"] != now["listed"]:
            found.append(f"{plural.count(now['listed'], 'image')} listed, {before['listed']:,} then")
    return [", ".join(found)] if found else []


def _round(number: float) -> int:
    """Rounds to two digits: an estimate has no more."""
    return int(float(f"{number:.1e}"))


def _decode_checksums(text: str, limit: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns, by place and key, the checksums of the file and of the source's other values."""
    found = {}
    for place, key, file, row in _ENTRY.iter_unpack(base64.b64decode(text)):
        if place < limit:
            found[place, key] = (file, row)
    return found
