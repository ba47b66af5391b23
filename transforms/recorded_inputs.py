"""What a dataset was made of, in a few kilobytes: enough to say how the inputs of two runs differ."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam.transforms import elements, hashing

NO_INPUTS: Mapping[str, Any] = {}  # of a dataset from before they were kept

_ALL = 1 << 32  # the limit of a sample that holds every image
_ENTRY = struct.Struct(">IIII")  # place in the sample's order, key, file, what the source says of it beside
_MAX_SAMPLED = 1024  # 16 kB; up to so many images are counted, more are estimated
_MAX_SAMPLED_OF_PART = (
    8  # of one of 1,024 buckets of references: sampling all images would cost as much as ranking them
)
_SPREAD = 0x9E3779B1  # odd: spreads checksums of keys that differ in a digit over all of the order
_MAX_NAMED = 5


class ImageSample(NamedTuple):
    """Checksums of those images whose place in a fixed order, which their keys decide, is below `limit`.

    Two datasets sample the same images, as far as both have them: what differs in the samples stands for the rest.
    """

    limit: int
    entries: tuple[bytes, ...]  # sorted

    def merge(self, others: Iterable[ImageSample]) -> ImageSample:
        """The sample of several disjoint sets together."""
        samples = [self, *others]
        limit = min(sample.limit for sample in samples)
        entries = sorted(entry for sample in samples for entry in sample.entries if _place(entry) < limit)
        return _truncate(limit, entries, _MAX_SAMPLED)


NO_IMAGES = ImageSample(_ALL, ())


def sample_images(refs: Sequence[elements.ImageRef], keep_position: bool) -> ImageSample:
    """The sample of one part of a dataset.

    Args:
        refs: the part.
        keep_position: whether the place in the source counts, as it does where it decides the order.
    """
    crc32, encode_key = zlib.crc32, hashing.encode_key  # once for each image: 1 us
    places = [crc32(encode_key(ref.key)) * _SPREAD & _ALL - 1 for ref in refs]
    limit = sorted(places)[_MAX_SAMPLED_OF_PART] if len(places) > _MAX_SAMPLED_OF_PART else _ALL
    entries = []
    for place, ref in zip(places, refs):
        if place >= limit:
            continue
        mask = ref.mask and (ref.mask.uri.rpartition("/")[2], ref.mask.size, ref.mask.version)
        file = (ref.uri.rpartition("/")[2], ref.size, ref.version, ref.offset, ref.length, mask)
        row = (ref.split, ref.label, ref.group, ref.columns, ref.expected, ref.position if keep_position else 0)
        entries.append(_ENTRY.pack(place, _checksum(ref.key), _checksum(file), _checksum(row)))
    return ImageSample(limit, tuple(sorted(entries)))


def _truncate(limit: int, entries: list[bytes], most: int) -> ImageSample:
    if len(entries) > most:
        limit = _place(entries[most])
        entries = [entry for entry in entries[:most] if _place(entry) < limit]
    return ImageSample(limit, tuple(entries))


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
    sample: ImageSample,
) -> dict[str, Any]:
    """What decides the fingerprint of a dataset, as JSON.

    Args:
        identity: JSON of the config that decides the shards, and of what else does, in a list.
        writer_version: raised when other bytes are written for the same.
        labels: what the files of labels hold.
        listed: how many images there are.
        rejected: images turned away before any was read, by reason.
        rejects_digest: of those images.
        sample: of the images.
    """
    decoded = json.loads(identity)
    config, others = decoded if isinstance(decoded, list) else (decoded, {})
    return {
        "writer": writer_version,
        "config": config,
        "others": others,
        "labels": _checksum(labels),
        "listed": listed,
        "rejected": dict(rejected),
        "rejects": f"{rejects_digest:x}",
        "sample_limit": sample.limit,
        "sample": base64.b64encode(b"".join(sample.entries)).decode(),
    }


def compare_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How the inputs of an earlier run differ from those of this one; says so, too, where that is not known."""
    try:
        return "; ".join(_differences(before, now)) or "config or images differ"
    except (KeyError, TypeError, ValueError, AttributeError, struct.error):  # another version described them
        return "config or images differ"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    config = _compare_settings(before["config"], now["config"])
    texts = config[:_MAX_NAMED] + ([f"{len(config) - _MAX_NAMED:,} more keys"] if len(config) > _MAX_NAMED else [])
    texts += _compare_settings(before["others"], now["others"])
    if before["labels"] != now["labels"]:
        texts.append("label.vocabulary or label.texts holds other classes")
    if before["writer"] != now["writer"]:
        texts.append("this version of imagebeam writes other bytes")
    texts += _compare_images(before, now, with_rows=before["config"] == now["config"])
    if before["rejected"] != now["rejected"]:
        was, is_ = (_describe_counts(each["rejected"]) for each in (before, now))
        texts.append(f"turned away before reading: {was} then, {is_} now")
    elif before["rejects"] != now["rejects"]:
        texts.append("other images are turned away before reading")
    if not texts and min(before["sample_limit"], now["sample_limit"]) < _ALL:
        texts.append(f"a few of {now['listed']:,} images, none of them among the {_MAX_SAMPLED:,} or so compared")
    return texts


def _compare_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    was, is_ = dict(_flatten(before)), dict(_flatten(now))
    return [
        f"{name} was {_describe(was, name)}, is {_describe(is_, name)}"
        for name in sorted(was.keys() | is_.keys())
        if was.get(name) != is_.get(name) or (name in was) != (name in is_)
    ]


def _flatten(settings: Mapping[str, Any], below: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{below}{name}.")
        else:
            yield f"{below}{name}", value


def _describe(settings: Mapping[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "not set"


def _describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _compare_images(before: Mapping[str, Any], now: Mapping[str, Any], with_rows: bool) -> list[str]:
    """How many images were added, removed and changed: exact where both samples are whole."""
    limit = min(before["sample_limit"], now["sample_limit"])
    was, is_ = (_decode_sample(each["sample"], limit) for each in (before, now))
    both = was.keys() & is_.keys()
    counts = {
        "added": len(is_.keys() - both),
        "removed": len(was.keys() - both),
        "changed": sum(was[key][: 2 if with_rows else 1] != is_[key][: 2 if with_rows else 1] for key in both),
    }
    if limit == _ALL:
        found = [f"{count:,} {_noun(count)} {what}" for what, count in counts.items() if count]
    else:
        scale = _ALL / limit
        most = {"added": now["listed"], "removed": before["listed"], "changed": min(now["listed"], before["listed"])}
        found = [
            f"about {min(_round(count * scale), most[what]):,} images {what}" for what, count in counts.items() if count
        ]
        if before["listed"] != now["listed"]:
            found.append(f"{now['listed']:,} images listed, {before['listed']:,} then")
    return [", ".join(found)] if found else []


def _noun(count: int) -> str:
    return "image" if count == 1 else "images"


def _round(number: float) -> int:
    """To two digits: more of an estimate would be false."""
    return int(float(f"{number:.1e}"))


def _decode_sample(text: str, limit: int) -> dict[tuple[int, int], tuple[int, int]]:
    """By place and key: the checksums of the file, and of what the source says beside."""
    found = {}
    for place, key, file, row in _ENTRY.iter_unpack(base64.b64decode(text)):
        if place < limit:
            found[place, key] = (file, row)
    return found
