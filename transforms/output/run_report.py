"""JSON that a run leaves in the metadata folder: its report for its launcher, its inputs for a later run."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from imagebeam import errors, features, plural, storage
from imagebeam.transforms import elements
from imagebeam.transforms.output import output_folder

State: TypeAlias = Literal["planned", "committed", "kept", "refused"]


@dataclasses.dataclass(frozen=True)
class RunReport:
    """State of a run when it wrote its report."""

    state: State
    plan: elements.DatasetPlan
    message: str = ""  # for the user
    error: errors.ImagebeamError | None = None  # that ended the run
    rejected: Mapping[str, int] | None = None  # all rejects by reason, for a run without a catalog to hold them

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return json.dumps(self, default=_fields_of).encode()

    def write(self, uri: str) -> None:
        """Writes the report to `uri`, in place of an earlier one; nothing for ""."""
        if uri:
            storage.storage_of(uri).write_whole(uri, self.encode(), durable=False)


def _fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass as they are: `dataclasses.asdict` copies each label, 10 ms for 1,000."""
    if isinstance(value, errors.ImagebeamError):
        return errors.to_fields(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def begun_of(report: str) -> str:
    """Returns the address of the empty file that the first worker of a run writes beside its report."""
    return f"{report}.begun"


def read_report(uri: str) -> RunReport | None:
    """Reads the report that the run has left so far; None if there is none yet."""
    try:
        fields = json.loads(storage.storage_of(uri).read(uri))
    except FileNotFoundError:
        return None
    return RunReport(**{**fields, "plan": _decode_plan(fields["plan"]), "error": _decode_error(fields["error"])})


def _decode_error(fields: Mapping[str, str] | None) -> errors.ImagebeamError | None:
    return None if fields is None else errors.from_fields(fields)


def _decode_plan(fields: Mapping[str, Any]) -> elements.DatasetPlan:
    known = dict(fields)
    known["splits"] = {name: elements.SplitPlan(**split) for name, split in known["splits"].items()}
    known["labels"], known["notes"] = tuple(known["labels"]), tuple(known["notes"])
    known["kept"] = tuple(features.Feature(*each) for each in known["kept"])
    known["committed"] = elements.Committed(**known["committed"]) if known.get("committed") else None
    known["error"] = _decode_error(known["error"])
    return elements.DatasetPlan(**known)


NO_INPUTS: Mapping[str, Any] = {}  # the run was killed before it recorded them
MASKS = "masks"  # key in the facts: how masks are stored, and the colors of their classes or None
LIBRARIES = "libraries"  # key in the facts: versions of libraries that encode images
_MAX_NAMED, _MAX_SHOWN = 5, 80


def describe_inputs(
    identity: str, writer_version: int, labels: Any, listed: int, rejected: Mapping[str, int], rejects_digest: int
) -> dict[str, Any]:
    """Returns everything that decides the fingerprint of a dataset, as values for JSON.

    Args:
        identity: JSON of a list: the part of the config that decides the shards, and other facts that do.
        writer_version: raised when a release writes other bytes for the same input.
        labels: the content of the label files.
        listed: number of images.
        rejected: number of images rejected before any was read, by reason.
        rejects_digest: digest of those images.
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
    return not identity or not inputs or (inputs.get("config"), inputs.get("others")) == _decode(identity)


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
        return json.loads(storage.storage_of(uri).read(uri))
    except (FileNotFoundError, ValueError):
        return NO_INPUTS


def compare_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the config of an earlier run and the number of its images differ from those of this one."""
    if not before:
        return "config or images differ"
    texts = _compare_configs(before, now, without=())
    if before["listed"] != now["listed"]:
        texts.append(f"{plural.count(now['listed'], 'image')} listed, {before['listed']:,} then")
    return "; ".join(texts) or "images, or their labels or columns, differ"


def compare_configs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the configs of two runs differ in what decides what an example is; "" if they do not.

    Versions of libraries that encode images, and of the writer, do not count: a newer one would end the nightly updates
    of a dataset.
    """
    return "; ".join(_compare_configs({**before, "writer": now["writer"]}, now, without=(LIBRARIES,)))


def _compare_configs(before: Mapping[str, Any], now: Mapping[str, Any], without: tuple[str, ...]) -> list[str]:
    was, is_ = (dict(_flatten(each["config"])) | dict(_flatten(each["others"], without)) for each in (before, now))
    texts = [
        f"{name} was {_describe(was, name)}, is {_describe(is_, name)}"
        for name in sorted(was.keys() | is_.keys())
        if was.get(name) != is_.get(name) or (name in was) != (name in is_)
    ]
    if len(texts) > _MAX_NAMED:
        texts[_MAX_NAMED:] = [f"{len(texts) - _MAX_NAMED:,} more keys"]
    return texts + ["this version of imagebeam writes other bytes"] * (before["writer"] != now["writer"])


def _flatten(settings: Mapping[str, Any], without: tuple[str, ...] = (), below: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and name not in without:
            yield from _flatten(value, (), f"{below}{name}.")
        elif name not in without:
            yield f"{below}{name}", value


def _describe(settings: Mapping[str, Any], name: str) -> str:
    text = json.dumps(settings[name]) if name in settings else "not set"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
