"""The catalog: the commit record of a written dataset. No `catalog.json`, no dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from imagebeam import errors, features, storage

# Raised when an older imagebeam would misread a newer catalog. A new field that only adds facts does not raise it:
# catalogs without the field stay readable, and an imagebeam that does not know the field reads the rest.
FORMAT_VERSION = 3  # written for an index of another tool's shards
_SNAPSHOT_FORMAT = 2  # written if a shard lies in another folder or has removed records
_SELF_CONTAINED_FORMAT = 1  # written for all other datasets
CATALOG_FILE = "catalog.json"
LABELS_FILE = "labels.txt"
MASK_LABELS_FILE = "mask_labels.txt"  # line n, counted from 0, names class n of the masks
REJECTS_FILE = "rejects.jsonl"
DUPLICATES_FILE = "duplicates.jsonl"
STATISTICS_FILE = "statistics.json"
REPORT_PAGE_FILE = "report.html"
INDEX_DIRECTORY = "index"
STATE_DIRECTORY = "state"  # in a snapshot, for the next update: one file for each shard
STATE_SUFFIX = ".json.gz"
METADATA_DIRECTORY = ".imagebeam"  # the lock, staged shards, reports; removed after a commit
INDEXING_PREFIX = "indexing-"  # the fingerprint of a run of `imagebeam index` begins so; it names the staging folder
COMMIT_LOCK_FILE = "publishing"  # file in it that names the fingerprint and the run while a commit moves shards
STAGING_PREFIX = "staging-"  # folder in it, named by the fingerprint, with the files that are not committed yet

_LIKE_TFRECORD = re.compile(r"\.tfrec|tfrecord|-\d{5,}-of-\d{5,}", re.IGNORECASE)
_NO_STATE = (0, None)


class File(NamedTuple):
    """A committed file."""

    bytes: int
    crc32c: int | None  # None for the index of a compressed shard, which there is none of


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a split."""

    name: str  # path relative to the dataset: in its folder, or in that of an earlier snapshot beside it
    records: int  # number in the file, removed ones included
    bytes: int  # size of the stored file
    crc32c: int  # checksum of the stored file
    index_crc32c: int | None = None  # checksum of its index; None without an index
    removed: int = 0  # records that no longer belong to the dataset; `snapshots.REMOVED_FILE` names them
    state_bytes: int = 0  # size of the state of its images; 0 without one
    state_crc32c: int | None = None

    @property
    def num_examples(self) -> int:
        """Number of records that belong to the dataset."""
        return self.records - self.removed

    @property
    def is_elsewhere(self) -> bool:
        """True if the shard is in the folder of an earlier snapshot."""
        return self.name.startswith("../")

    @property
    def index_name(self) -> str:
        """Path of the byte-offset index, relative to the dataset. Compressed shards have no index."""
        folder, slash, name = self.name.rpartition("/") if self.is_elsewhere else ("", "", self.name)
        return f"{folder}{slash}{INDEX_DIRECTORY}/{name.removesuffix('.tfrecord')}.index"

    @property
    def index_file(self) -> File:
        """Entry of the index: it has 8 bytes for the offset of each record, and 8 for the shard's size."""
        return File(8 * (self.records + 1), self.index_crc32c)

    @property
    def state_name(self) -> str:
        """Path of the state of its images, relative to the dataset. Only shards of snapshots have one."""
        folder, slash, name = self.name.rpartition("/")
        stem = name.removesuffix(".gz").removesuffix(".tfrecord")
        return f"{folder}{slash}{STATE_DIRECTORY}/{stem}{STATE_SUFFIX}"

    @property
    def state_file(self) -> File | None:
        """Entry of the state; None if there is none."""
        return File(self.state_bytes, self.state_crc32c) if self.state_bytes else None


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split, in order."""

    shards: tuple[Shard, ...]

    @property
    def num_examples(self) -> int:
        return sum(shard.num_examples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The fate of every image: `listed == written + sum(rejected.values())`."""

    listed: int
    written: int
    rejected: Mapping[str, int]  # by reason
    skipped: Mapping[str, int]  # hidden files, non-images...; not counted in `listed`


DAMAGE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)  # raised for JSON of another shape


def _naming_the_file(parse: Callable[[Any, str, str], Catalog]) -> Callable[[Any, str, str], Catalog]:
    """Turns any error about the shape of a catalog into a CatalogError that names the file."""

    @functools.wraps(parse)
    def parse_catalog(cls: Any, text: str, where: str) -> Catalog:
        try:
            return _checked(parse(cls, text, where))
        except DAMAGE as e:
            raise errors.CatalogError(
                f"{where} is not a catalog ({type(e).__name__}: {e}); "
                "run the same convert command again with --overwrite, which lists the shards to remove first"
            ) from e

    return parse_catalog


def _checked(catalog: Catalog) -> Catalog:
    """Returns the catalog after checking the types of the fields that readers use.

    Raises:
        TypeError: if a field has another type.
        ValueError: if the compression is not known.
    """
    expected: list[tuple[str, Any, Any]] = [
        ("name", catalog.name, str),
        ("fingerprint", catalog.fingerprint, str),
        ("compression", catalog.compression, str),
        ("label_kind", catalog.label_kind, (str, type(None))),
        ("label_base", catalog.label_base, int),
        ("config", catalog.config, dict),
        ("files", catalog.files, dict),
        ("snapshot", catalog.snapshot, dict),
        ("indexed", catalog.indexed, dict),
        *(("labels", label, str) for label in catalog.labels),
        *(("keypoints", name, str) for name in catalog.keypoints),
        *(("object_classes", name, str) for name in catalog.object_classes.values()),
        *((f"config.{name}", catalog.config.get(name, {}), (dict, type(None))) for name in ("image", "source")),
    ]
    for feature in catalog.features:
        expected += [("features", each, str) for each in (feature.key, feature.source, feature.kind)]
        expected.append(("features", feature.many, bool))
    for split in catalog.splits.values():
        for shard in split.shards:
            expected.append(("shards", shard.name, str))
            expected += [("shards", each, int) for each in (shard.records, shard.bytes, shard.crc32c)]
            expected += [("shards", each, int) for each in (shard.removed, shard.state_bytes)]
            if min(shard.records, shard.bytes) < 0:
                raise TypeError(f"{shard.name!r} has {shard.records} records in {shard.bytes} bytes")
            if not 0 <= shard.removed <= shard.records:
                raise TypeError(f"{shard.name!r} has {shard.removed} removed records of {shard.records}")
    if catalog.compression not in ("none", "gzip"):
        raise ValueError(f"compression is {catalog.compression!r}")
    for name, value, kind in expected:
        if not isinstance(value, kind):
            raise TypeError(f"{name} has {value!r}")
    return catalog


@dataclasses.dataclass(frozen=True)
class Catalog:
    """Description of a dataset: all that a reader needs before it opens a shard."""

    name: str
    fingerprint: str  # covers config and references: equal fingerprints mean equal shards
    compression: str  # "none" or "gzip"
    splits: Mapping[str, Split]
    labels: tuple[str, ...]  # class names; the id of the first is `label_base`
    label_kind: str | None  # "class", "int64" (a target), "float" (a target), None
    label_base: int
    features: tuple[features.Feature, ...]
    config: Mapping[str, Any]
    counts: Counts
    versions: Mapping[str, str]  # packages that can change bytes
    created: str  # ISO 8601, UTC
    # By name, without the shards, the indexes and the catalog.
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # transforms/output/recorded_inputs.py
    # {} without snapshots; otherwise name and base (None for the first), and how many images were added, changed,
    # removed and left unchanged since the base
    snapshot: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # {} unless duplicates were looked for; otherwise by kind ("exact", "near") and split, how many images repeat an
    # image of which split; those that were dropped, too
    duplicates: Mapping[str, Mapping[str, Mapping[str, int]]] = dataclasses.field(default_factory=dict)
    # Names of the classes of objects by their ids; {} without objects.
    object_classes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    keypoints: tuple[str, ...] = ()  # names of the keypoints of each object, in their order
    # {} unless `imagebeam index` made the catalog, of shards that another tool wrote: they are never moved or removed
    indexed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_self_contained(self) -> bool:
        """True if all shards are in the folder of the catalog, and all of their records belong to the dataset."""
        every = (shard for split in self.splits.values() for shard in split.shards)
        return not any(shard.is_elsewhere or shard.removed for shard in every)

    @property
    def _format_version(self) -> int:
        if self.indexed:
            return FORMAT_VERSION
        return _SELF_CONTAINED_FORMAT if self.is_self_contained else _SNAPSHOT_FORMAT

    def to_json(self) -> str:
        """Returns the text of `catalog.json`. Its last field is the checksum of all other fields."""
        fields = {
            "format_version": self._format_version,
            "name": self.name,
            "created": self.created,
            "fingerprint": self.fingerprint,
            "compression": self.compression,
            "counts": dataclasses.asdict(self.counts),
            "splits": {
                name: {
                    "num_examples": split.num_examples,
                    "num_bytes": split.num_bytes,
                    "shards": [_shard_fields(shard) for shard in split.shards],
                }
                | _index_fields(split)
                | _state_fields(split)
                for name, split in self.splits.items()
            },
            "label_kind": self.label_kind,
            "label_base": self.label_base,
            "labels": list(self.labels),
            "features": [
                {"key": f.key, "source": f.source, "type": f.kind} | ({"list": True} if f.many else {})
                for f in self.features
            ],
            "config": self.config,
            "versions": self.versions,
        } | ({"files": {name: file._asdict() for name, file in self.files.items()}} if self.files else {})
        fields |= {"inputs": self.inputs} if self.inputs else {}
        fields |= {"snapshot": self.snapshot} if self.snapshot else {}
        fields |= {"duplicates": self.duplicates} if self.duplicates else {}
        if self.object_classes:
            fields["object_classes"] = {str(label): name for label, name in self.object_classes.items()}
        fields |= {"keypoints": list(self.keypoints)} if self.keypoints else {}
        fields |= {"indexed": self.indexed} if self.indexed else {}
        return json.dumps(fields | {"checksum": _checksum(fields)}, indent=1) + "\n"

    @classmethod
    @_naming_the_file
    def from_json(cls, text: str, where: str) -> Catalog:
        """Parses `catalog.json`.

        Args:
            text: the file's content.
            where: its address, for the errors.

        Raises:
            CatalogError: if the text is not a catalog, has a newer format, or was edited by hand.
        """
        fields = json.loads(text)
        version = fields["format_version"]
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise errors.CatalogError(
                f"{where} has format version {version!r}, this imagebeam reads up to {FORMAT_VERSION}: update imagebeam"
            )
        checksum = fields.pop("checksum", None)
        if checksum != _checksum(fields):
            again = "run the same convert command again with --overwrite"
            if fields.get("indexed"):
                again = "remove it and run imagebeam index again"
            raise errors.CatalogError(
                f"{where} was edited after it was written: its checksum is {checksum}, its content has "
                f"{_checksum(fields)}; restore it, or {again}"
            )
        return cls(
            name=fields["name"],
            fingerprint=fields["fingerprint"],
            compression=fields["compression"],
            splits={
                name: Split(
                    tuple(
                        Shard(**shard, index_crc32c=index_crc32c, state_bytes=num_bytes, state_crc32c=crc32c)
                        for shard, index_crc32c, (num_bytes, crc32c) in zip(
                            split["shards"],
                            split.get("index_crc32c") or itertools.repeat(None),
                            split.get("states") or itertools.repeat(_NO_STATE),
                        )
                    )
                )
                for name, split in fields["splits"].items()
            },
            labels=tuple(fields["labels"]),
            label_kind=fields["label_kind"],
            label_base=fields["label_base"],
            features=tuple(
                features.Feature(f["key"], f["source"], f["type"], f.get("list", False)) for f in fields["features"]
            ),
            config=fields["config"],
            counts=Counts(**fields["counts"]),
            versions=fields["versions"],
            created=fields["created"],
            files={name: File(**file) for name, file in fields.get("files", {}).items()},
            inputs=fields.get("inputs", {}),
            snapshot=fields.get("snapshot", {}),
            duplicates=fields.get("duplicates", {}),
            keypoints=tuple(fields.get("keypoints", ())),
            object_classes={int(label): name for label, name in fields.get("object_classes", {}).items()},
            indexed=fields.get("indexed", {}),
        )


def _shard_fields(shard: Shard) -> dict[str, Any]:
    fields = {"name": shard.name, "records": shard.records, "bytes": shard.bytes, "crc32c": shard.crc32c}
    return fields | ({"removed": shard.removed} if shard.removed else {})


def _index_fields(split: Split) -> dict[str, Any]:
    """Returns the checksums of a split's indexes in shard order: a tenth of the text of entries by name."""
    checksums = [shard.index_crc32c for shard in split.shards]
    return {} if all(checksum is None for checksum in checksums) else {"index_crc32c": checksums}


def _state_fields(split: Split) -> dict[str, Any]:
    """Returns size and checksum of the states of a split's shards, in shard order."""
    states = [(shard.state_bytes, shard.state_crc32c) for shard in split.shards]
    return {"states": states} if any(state != _NO_STATE for state in states) else {}


def _checksum(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def load_catalog(
    directory: str | os.PathLike[str],
    read: Callable[[str], bytes] | None = None,
    list_names: Callable[[str], Iterable[str]] | None = None,
) -> Catalog:
    """Reads the catalog of the dataset in `directory`.

    Args:
        directory: a path or an address.
        read: returns all bytes of the file at an address; by default the storage of the address does.
        list_names: returns the names of the files at an address; by default the storage of the address does.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
    """
    found = find_catalog(directory, read)
    if found is None:
        raise missing_catalog(directory, read, list_names)
    return found


def find_catalog(directory: str | os.PathLike[str], read: Callable[[str], bytes] | None = None) -> Catalog | None:
    """Reads the catalog of the dataset in `directory`; returns None if there is none.

    Args:
        directory: a path or an address.
        read: as for `load_catalog`.

    Raises:
        CatalogError: if the catalog cannot be read.
    """
    uri = storage.join(storage.normalize(directory), CATALOG_FILE)
    try:
        text = (read or storage.storage_of(uri).read)(uri).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise unreadable(uri, e) from e
    return Catalog.from_json(text, uri)


def missing_catalog(
    directory: str | os.PathLike[str],
    read: Callable[[str], bytes] | None = None,
    list_names: Callable[[str], Iterable[str]] | None = None,
) -> errors.CatalogError:
    """Returns the error for a folder without a catalog; it says why there is none. Arguments as of `load_catalog`."""
    other = _name_of_another_tool(storage.normalize(directory), list_names)
    if other:
        return errors.CatalogError(
            f"{directory} holds no {CATALOG_FILE}: {other!r} is a TFRecord file that another tool wrote; "
            f"imagebeam index {directory} makes such files readable where they are, and imagebeam convert --config "
            f"tfrecord --input {directory} --output OUTPUT makes a dataset of them"
        )
    return errors.CatalogError(
        f"{directory} holds no {CATALOG_FILE}: {_why_there_is_none(storage.normalize(directory), read)}"
    )


def _why_there_is_none(directory: str, read: Callable[[str], bytes] | None) -> str:
    """Returns why a folder holds no catalog, and what to do."""
    metadata = storage.join(directory, METADATA_DIRECTORY)
    read_file = read or storage.storage_of(directory).read
    try:
        fingerprint = json.loads(read_file(storage.join(metadata, COMMIT_LOCK_FILE)))["fingerprint"]
        staged = storage.join(metadata, f"{STAGING_PREFIX}{fingerprint}", CATALOG_FILE)
        catalog = Catalog.from_json(read_file(staged).decode("utf-8", "replace"), staged)
    except (OSError, errors.CatalogError, *DAMAGE):
        pass
    else:
        if catalog.indexed:
            return f"an index of it was cut short while it was committed; run imagebeam index {directory} again"
        source = (catalog.config.get("source") or {}).get("uri")
        return (
            f"the commit of a dataset of {catalog.counts.written:,} images was cut short; run the same convert command "
            f"again (--input {source}), which finishes it"
        )
    try:
        names = [] if read else [entry.name for entry in storage.storage_of(metadata).list_directory(metadata)]
    except OSError:
        names = []
    if any(name.startswith(STAGING_PREFIX + INDEXING_PREFIX) for name in names):
        return f"an index of it is unfinished; wait for it, or run imagebeam index {directory} again to resume"
    if any(name.startswith(STAGING_PREFIX) for name in names):
        return "a conversion into it is unfinished; wait for it, or run the same convert command again to resume"
    return "no dataset was committed there; give the --output of a successful convert command"


def _name_of_another_tool(directory: str, list_names: Callable[[str], Iterable[str]] | None) -> str:
    """Returns a TFRecord file of another tool in a folder, or at the address itself; "" if there is none."""
    if _LIKE_TFRECORD.search(posixpath.basename(directory)) and storage.scheme_of(directory) == "file":
        return posixpath.basename(directory) if os.path.isfile(directory) else ""
    try:
        if list_names is None:
            entries = storage.storage_of(directory).list_directory(directory)
            names = sorted(entry.name for entry in entries)
        else:
            names = sorted(name.rstrip("/") for name in list_names(directory))
    except (OSError, errors.ImagebeamError):  # this only adds detail to an error that is raised anyway
        return ""
    if not {INDEX_DIRECTORY, METADATA_DIRECTORY}.isdisjoint(names):
        return ""
    return next((name for name in names if _LIKE_TFRECORD.search(name)), "")


def unreadable(uri: str, error: OSError) -> errors.CatalogError:
    """Returns the error for a small file of a dataset that is there and cannot be read."""
    reason = error.strerror or error
    if isinstance(error, storage.UnavailableError):  # its text names the address
        return errors.CatalogError(f"{reason}: check the address, and that it can be reached from here, and run again")
    if storage.is_fault(error):
        return errors.CatalogError(
            f"{uri} cannot be read ({reason}): this machine has no open files or no memory left; free some, and run "
            "again"
        )
    return errors.CatalogError(f"{uri} cannot be read ({reason}); grant read access to it")


def load_statistics(directory: str | os.PathLike[str], read: Callable[[str], bytes] | None = None) -> Mapping[str, Any]:
    """Reads the writer's statistics, by split. Returns {} if the file is missing: a dataset can be read without it.

    Args:
        directory: a path or an address.
        read: as for `load_catalog`.

    Raises:
        CatalogError: if the file is damaged, or cannot be read.
    """
    uri = storage.join(storage.normalize(directory), STATISTICS_FILE)
    try:
        found = json.loads((read or storage.storage_of(uri).read)(uri))
        _check_statistics(found)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as e:
        raise unreadable(uri, e) from e
    except DAMAGE as e:
        raise errors.CatalogError(
            f"{uri} is damaged ({type(e).__name__}: {e}): run the same convert command again with --overwrite, "
            "or remove the file, without which the dataset can be read"
        ) from e
    return found


def _check_statistics(found: Any) -> None:
    """Raises TypeError, or another error of DAMAGE, if a field that readers use has another shape."""
    for split, counted in found.items():
        for name in ("formats", "height", "width"):
            if not isinstance(counted.get(name, {}), dict):
                raise TypeError(f"{name} of {split!r} is {counted[name]!r}")
        for name in ("height", "width"):
            if not isinstance(counted.get(name, {}).get("max", 0), int):
                raise TypeError(f"{name} of {split!r} is {counted[name]!r}")
        pixels = counted.get("pixels")
        for name in ("mean", "std") if pixels else ():
            if len([float(each) for each in pixels[name]]) not in (1, 3):
                raise TypeError(f"{name} of {split!r} is {pixels[name]!r}")
        if pixels and not isinstance(pixels["images"], int):
            raise TypeError(f"images of {split!r} is {pixels['images']!r}")
