"""Records what a dataset is made of, so that a later run can say how its config differs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from imagebeam import plural, storage
from imagebeam.transforms import elements
from imagebeam.transforms.output import output_folder

_COLORS = "source.masks.colors"  # key of the config
NO_INPUTS: Mapping[str, Any] = {}  # of a run that was killed before it recorded them
MASKS = "masks"  # among the facts: how masks are stored, and the colors of their classes or None
LIBRARIES = "libraries"  # versions of what encodes images, among the facts outside the config
_MAX_NAMED = 5


def describe_inputs(
    identity: str,
    writer_version: int,
    labels: Any,
    listed: int,
    rejected: Mapping[str, int],
    rejects_digest: int,
) -> dict[str, Any]:
    """Returns everything that decides the fingerprint of a dataset, as values for JSON.

    Args:
        identity: JSON of a list: the part of the config that decides the shards, and the other facts that do.
        writer_version: raised when a release writes other bytes for the same input.
        labels: the content of the label files.
        listed: number of images.
        rejected: number of images rejected before any was read, by reason.
        rejects_digest: of those images.
    """
    config, others = _decode(identity)
    return {
        "writer": writer_version,
        "config": config,
        "others": others,
        "labels": zlib.crc32(repr(labels).encode("utf-8", "backslashreplace")),
        "listed": listed,
        "rejected": dict(rejected),
        "rejects": f"{rejects_digest:x}",
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
    uri = storage.join(staging, output_folder.INPUTS_FILE)
    store.write_whole(uri, json.dumps(plan.inputs).encode(), durable=False)


def read_inputs(staging: str) -> Mapping[str, Any]:
    """Reads what the dataset in a staging folder is made of; NO_INPUTS if its run did not record it."""
    uri = storage.join(staging, output_folder.INPUTS_FILE)
    try:
        found = json.loads(storage.storage_of(uri).read(uri))
    except (FileNotFoundError, ValueError):
        return NO_INPUTS
    return found if isinstance(found, dict) else NO_INPUTS


def compare_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the inputs of an earlier run differ from those of this one, as far as that is known."""
    if not before:
        return "config or images differ"
    config = _compare_settings(before["config"], now["config"])
    texts = config[:_MAX_NAMED] + ([f"{len(config) - _MAX_NAMED:,} more keys"] if len(config) > _MAX_NAMED else [])
    texts += _compare_settings(_by_key(before["others"]), _by_key(now["others"]))
    if before["labels"] != now["labels"]:
        texts.append("label.vocabulary or label.texts holds other classes")
    if before["writer"] != now["writer"]:
        texts.append("this version of imagebeam writes other bytes")
    if before["listed"] != now["listed"]:
        texts.append(f"{plural.count(now['listed'], 'image')} listed, {before['listed']:,} then")
    if before["rejected"] != now["rejected"]:
        was, is_ = (_describe_counts(each["rejected"]) for each in (before, now))
        texts.append(f"rejected before reading: {was} then, {is_} now")
    elif before["rejects"] != now["rejects"]:
        texts.append("other images are rejected before reading")
    return "; ".join(texts) or "images, or their labels or columns, differ"


def compare_configs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the configs of two runs differ in what decides what an example is; "" if they do not.

    Versions of libraries that encode images do not count: a newer one would end the nightly updates of a dataset.
    """
    others = ({name: each["others"][name] for name in each["others"] if name != LIBRARIES} for each in (before, now))
    texts = _compare_settings(before["config"], now["config"]) + _compare_settings(*map(_by_key, others))
    if before["writer"] != now["writer"]:
        texts.append("this version of imagebeam writes other bytes")
    return "; ".join(texts)


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
