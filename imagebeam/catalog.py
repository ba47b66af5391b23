"""The catalog: the commit record of a written dataset. No `catalog.json`, no dataset."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam import errors, features, records, storage
from imagebeam import version as version_lib

# Raised when an older imagebeam would misread a newer catalog. A new field that only adds facts does not raise it:
# catalogs without the field stay readable, and an imagebeam that does not know the field reads the rest.
FORMAT_VERSION = 4  # written for pixels of another type than the usual ones
_INDEX_FORMAT = 3  # written for an index of another tool's shards
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

_CHECKSUMS = ("index_crc32c", "sizes_crc32c")  # fields of a shard that are lists in the JSON
_LIKE_TFRECORD = re.compile(r"\.tfrec|tfrecord|-\d{5,}-of-\d{5,}", re.IGNORECASE)


class File(NamedTuple):
    """A committed file."""

    bytes: int
    crc32c: int | None  # None where it was not recorded


def entry_of(data: bytes) -> File:
    """Returns the entry of a file with this content."""
    return File(len(data), records.extend_crc(0, data))


class SideFile(NamedTuple):
    """A small file beside a shard, which is written, committed, checked and removed with it."""

    name: str  # path relative to the dataset
    entry: File

    @property
    def staged_name(self) -> str:
        """Name in the staging folder, which has no folders."""
        return posixpath.basename(self.name)


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a split."""

    name: str
    """Path relative to the dataset: in its folder, or in that of an earlier snapshot beside it."""
    records: int
    """Number in the file, removed ones included."""
    bytes: int
    """Size of the stored file."""
    crc32c: int
    """Checksum of the stored file."""
    index_crc32c: int | None = None
    """Checksum of its index; None without an index, or if it was not recorded."""
    removed: int = 0
    """Records that no longer belong to the dataset; `snapshots.REMOVED_FILE` names them."""
    state_bytes: int = 0
    """Size of the state of its images; 0 without one."""
    state_crc32c: int | None = None
    sizes_crc32c: int | None = None
    """Checksum of the sizes of its images; None without that file."""

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
        return self._name_in_index("index")

    @property
    def index_file(self) -> File:
        """Entry of the index: it has 8 bytes for the offset of each record, and 8 for the shard's size."""
        return File(8 * (self.records + 1), self.index_crc32c)

    @property
    def sizes_name(self) -> str:
        """Path of the heights and widths of its images, relative to the dataset."""
        return self._name_in_index("sizes")

    @property
    def sizes_file(self) -> File | None:
        """Entry of the heights and widths, 4 bytes for each record: `records.encode_sizes`. None if there is none."""
        return None if self.sizes_crc32c is None else File(4 * self.records, self.sizes_crc32c)

    def _name_in_index(self, suffix: str) -> str:
        folder, slash, name = self.name.rpartition("/") if self.is_elsewhere else ("", "", self.name)
        return f"{folder}{slash}{INDEX_DIRECTORY}/{name.removesuffix('.tfrecord')}.{suffix}"

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

    def side_files(self, compression: str) -> tuple[SideFile, ...]:
        """Returns the files beside the shard: the index first, if the shard is not compressed."""
        every = (
            (self.index_name, self.index_file if compression == "none" else None),
            (self.sizes_name, self.sizes_file),
            (self.state_name, self.state_file),
        )
        return tuple(SideFile(name, entry) for name, entry in every if entry is not None)


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
    rejected: Mapping[str, int]
    """By reason."""
    skipped: Mapping[str, int]
    """Hidden files, non-images...; not counted in `listed`."""


DAMAGE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)  # raised for JSON of another shape


@dataclasses.dataclass(frozen=True)
class Catalog:
    """Description of a dataset: all that a reader needs before it opens a shard.

    Examples:
        >>> catalog = imagebeam.open_dataset("shards").catalog
        >>> catalog.splits["train"].shards[0].name, catalog.counts.written
        ('train-00000-of-00007.tfrecord', 600)
    """

    name: str
    fingerprint: str
    """Covers config and references: equal fingerprints mean equal shards."""
    compression: str
    """One of "none" or "gzip"."""
    splits: Mapping[str, Split]
    labels: tuple[str, ...]
    """Class names; the id of the first is `label_base`."""
    label_kind: str | None
    """One of "class", "int64" (a target), "float" (a target), None."""
    label_base: int
    features: tuple[features.Feature, ...]
    config: Mapping[str, Any]
    counts: Counts
    versions: Mapping[str, str]
    """Packages that can change bytes."""
    created: str
    """ISO 8601, UTC."""
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)
    """By name, without the shards, their side files and the catalog."""
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What decides the fingerprint, as values for JSON."""
    snapshot: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{} without snapshots; otherwise name and base (None for the first), and how many images were added, changed,
    removed and left unchanged since the base.
    """
    duplicates: Mapping[str, Mapping[str, Mapping[str, int]]] = dataclasses.field(default_factory=dict)
    """{} unless duplicates were looked for; otherwise by kind ("exact", "near") and split, how many images repeat an
    image of which split; those that were dropped, too.
    """
    object_classes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Names of the classes of objects by their ids; {} without objects."""
    keypoints: tuple[str, ...] = ()
    """Names of the keypoints of each object, in their order."""
    pixels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{} for the usual pixels, of 8 bits; otherwise "dtype" of the stored ones and "shape", height, width and
    channels, each None where images differ.
    """
    extra_pixels: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """By the name of an extra image whose pixels are no colors of 8 bits: their "dtype" and "channels"."""
    indexed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{} unless `imagebeam index` made the catalog, of shards that another tool wrote: they are never moved or
    removed.
    """

    @property
    def is_self_contained(self) -> bool:
        """True if all shards are in the folder of the catalog, and all of their records belong to the dataset."""
        every = (shard for split in self.splits.values() for shard in split.shards)
        return not any(shard.is_elsewhere or shard.removed for shard in every)

    @property
    def _format_version(self) -> int:
        if self.pixels or self.extra_pixels:
            return FORMAT_VERSION
        if self.indexed:
            return _INDEX_FORMAT
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
            "splits": {name: _split_fields(split) for name, split in self.splits.items()},
            "label_kind": self.label_kind,
            "label_base": self.label_base,
            "labels": list(self.labels),
            "features": [
                {"key": f.key, "source": f.source, "type": f.kind}
                | ({"list": True} if f.many else {})
                | ({} if f.shape is None else {"shape": f.shape})
                for f in self.features
            ],
            "config": self.config,
            "versions": self.versions,
        }
        optional = {
            "files": {name: file._asdict() for name, file in self.files.items()},
            "inputs": self.inputs,
            "snapshot": self.snapshot,
            "duplicates": self.duplicates,
            "object_classes": {str(label): name for label, name in self.object_classes.items()},
            "keypoints": list(self.keypoints),
            "pixels": self.pixels,
            "extra_pixels": self.extra_pixels,
            "indexed": self.indexed,
        }
        fields |= {name: value for name, value in optional.items() if value}
        return json.dumps(with_checksum(fields), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Catalog:
        """Parses `catalog.json`. Fields that later releases add are skipped.

        Args:
            text: the file's content.
            where: its address, for the errors.

        Raises:
            CatalogError: if the text is not a catalog, has a newer format, or was edited by hand.
        """
        try:
            fields = json.loads(text)
            version = fields["format_version"]
            if type(version) is not int or version < 1:
                raise ValueError(f"its format_version is {version!r}, and must be a whole number from 1 on")
            if version > FORMAT_VERSION:
                raise errors.CatalogError(
                    "catalog-other-format",
                    f"{where} has format version {version!r}, and {FORMAT_VERSION} is the last one that is known here; "
                    + version_lib.advise_update(_writer_of(fields)),
                )
            checksum = fields.pop("checksum", None)
            expected = with_checksum(fields)["checksum"]
            if checksum != expected:
                again = "run the same convert command again with --overwrite"
                if fields.get("indexed"):
                    again = "remove it and run imagebeam index again"
                raise errors.CatalogError(
                    "catalog-edited",
                    f"{where} was edited after it was written: its checksum is {checksum}, its content has "
                    f"{expected}; restore it, or {again}",
                )
            parsed = {
                "splits": {name: Split(tuple(_shards_of(split))) for name, split in fields["splits"].items()},
                "labels": tuple(fields["labels"]),
                "features": tuple(
                    features.Feature(
                        f["key"],
                        f["source"],
                        f["type"],
                        f.get("list", False),
                        tuple(f["shape"]) if "shape" in f else None,
                    )
                    for f in fields["features"]
                ),
                "counts": Counts(**_known(Counts, fields["counts"])),
                "files": {name: File(file["bytes"], file["crc32c"]) for name, file in fields.get("files", {}).items()},
                "keypoints": tuple(fields.get("keypoints", ())),
                "object_classes": {int(label): name for label, name in fields.get("object_classes", {}).items()},
            }
            return cls(**_known(cls, fields | parsed))
        except DAMAGE as e:
            raise errors.CatalogError(
                "catalog-damaged",
                f"{where} is not a catalog ({type(e).__name__}: {e}); "
                "run the same convert command again with --overwrite, which lists the shards to remove first",
            ) from e


def _known(cls: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that a dataclass has: later versions of imagebeam may add others, which only add facts."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in fields.items() if name in names}


def _writer_of(fields: Mapping[str, Any]) -> object:
    """Returns the version of imagebeam that wrote a catalog; None if that cannot be told."""
    versions = fields.get("versions")
    return versions.get("imagebeam") if isinstance(versions, Mapping) else None


def _split_fields(split: Split) -> dict[str, Any]:
    """Returns a split for the JSON. Checksums of side files are lists: a tenth of the text of named entries."""
    shards = [
        {"name": shard.name, "records": shard.records, "bytes": shard.bytes, "crc32c": shard.crc32c}
        | ({"removed": shard.removed} if shard.removed else {})
        for shard in split.shards
    ]
    fields = {"num_examples": split.num_examples, "num_bytes": split.num_bytes, "shards": shards}
    for name in _CHECKSUMS:
        if any(getattr(shard, name) is not None for shard in split.shards):
            fields[name] = [getattr(shard, name) for shard in split.shards]
    if any(shard.state_file for shard in split.shards):
        fields["states"] = [(shard.state_bytes, shard.state_crc32c) for shard in split.shards]
    return fields


def _shards_of(split: Mapping[str, Any]) -> Iterator[Shard]:
    """Yields the shards of a split in the JSON."""
    checksums = zip(*(split.get(name) or itertools.repeat(None) for name in _CHECKSUMS))
    states = split.get("states") or itertools.repeat((0, None))
    for shard, crcs, (state_bytes, state_crc32c) in zip(split["shards"], checksums, states):
        yield Shard(
            **_known(Shard, shard), **dict(zip(_CHECKSUMS, crcs)), state_bytes=state_bytes, state_crc32c=state_crc32c
        )


def with_checksum(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a catalog with the checksum of all of them as the last one."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return {**fields, "checksum": "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()}


def load_catalog(directory: str | os.PathLike[str], store: storage.Storage | None = None) -> Catalog:
    """Reads the catalog of the dataset in `directory`.

    Args:
        directory: a path or an address.
        store: the storage of the address, if it is not the one with default options.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
    """
    found = find_catalog(directory, store)
    if found is None:
        raise missing_catalog(directory, store)
    return found


def find_catalog(directory: str | os.PathLike[str], store: storage.Storage | None = None) -> Catalog | None:
    """Reads the catalog of the dataset in `directory`; returns None if there is none. Arguments as of `load_catalog`.

    Raises:
        CatalogError: if the catalog cannot be read.
    """
    uri = storage.join(storage.normalize(directory), CATALOG_FILE)
    try:
        text = (store or storage.storage_of(uri)).read(uri).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise unreadable(uri, e) from e
    return Catalog.from_json(text, uri)


def missing_catalog(directory: str | os.PathLike[str], store: storage.Storage | None = None) -> errors.CatalogError:
    """Returns the error for a folder without a catalog; it says why there is none. Arguments as of `load_catalog`."""
    folder = storage.normalize(directory)
    store = store or storage.storage_of(folder)
    found = f"{directory} holds no {CATALOG_FILE}: "
    if other := _name_of_another_tool(folder, store):
        return errors.CatalogError(
            "catalog-missing-for-tfrecords",
            f"{found}{other!r} is a TFRecord file that another tool wrote; imagebeam index {directory} makes such "
            f"files readable where they are, and imagebeam convert --config tfrecord --input {directory} --output "
            "OUTPUT makes a dataset of them",
        )
    if unfinished := _unfinished_work(folder, store):
        return errors.CatalogError("catalog-unfinished", found + unfinished)
    return errors.CatalogError(
        "catalog-missing", f"{found}no dataset was committed there; give the --output of a successful convert command"
    )


def _unfinished_work(directory: str, store: storage.Storage) -> str:
    """Returns which run into a folder did not end, and what to do; "" if there is none."""
    metadata = storage.join(directory, METADATA_DIRECTORY)
    try:
        fingerprint = json.loads(store.read(storage.join(metadata, COMMIT_LOCK_FILE)))["fingerprint"]
        staged = storage.join(metadata, f"{STAGING_PREFIX}{fingerprint}", CATALOG_FILE)
        catalog = Catalog.from_json(store.read(staged).decode("utf-8", "replace"), staged)
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
        names = [entry.name for entry in store.list_directory(metadata)]
    except OSError:
        names = []
    if any(name.startswith(STAGING_PREFIX + INDEXING_PREFIX) for name in names):
        return f"an index of it is unfinished; wait for it, or run imagebeam index {directory} again to resume"
    if any(name.startswith(STAGING_PREFIX) for name in names):
        return "a conversion into it is unfinished; wait for it, or run the same convert command again to resume"
    return ""


def _name_of_another_tool(directory: str, store: storage.Storage) -> str:
    """Returns a TFRecord file of another tool in a folder, or at the address itself; "" if there is none."""
    if store.is_local and _LIKE_TFRECORD.search(posixpath.basename(directory)):
        return posixpath.basename(directory) if os.path.isfile(directory) else ""
    try:
        names = sorted(entry.name for entry in store.list_directory(directory))
    except (OSError, errors.ImagebeamError):  # this only adds detail to an error that is raised anyway
        return ""
    if not {INDEX_DIRECTORY, METADATA_DIRECTORY}.isdisjoint(names):
        return ""
    return next((name for name in names if _LIKE_TFRECORD.search(name)), "")


def unreadable(uri: str, error: OSError) -> errors.CatalogError:
    """Returns the error for a small file of a dataset that is there and cannot be read."""
    reason = error.strerror or error
    text = f"{uri} cannot be read ({reason}); grant read access to it"
    if isinstance(error, storage.UnavailableError):  # its text names the address
        text = f"{reason}: check the address, and that it can be reached from here, and run again"
    elif storage.is_fault(error):
        text = (
            f"{uri} cannot be read ({reason}): this machine has no open files or no memory left; free some, and run "
            "again"
        )
    return errors.CatalogError("dataset-unreadable", text)


def load_statistics(directory: str | os.PathLike[str], store: storage.Storage | None = None) -> Mapping[str, Any]:
    """Reads the writer's statistics, by split. Returns {} if the file is missing: a dataset can be read without it.

    Args:
        directory: a path or an address.
        store: as for `load_catalog`.

    Raises:
        CatalogError: if the file is damaged, or cannot be read.
    """
    uri = storage.join(storage.normalize(directory), STATISTICS_FILE)
    try:
        found = json.loads((store or storage.storage_of(uri)).read(uri))
        _check_statistics(found)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as e:
        raise unreadable(uri, e) from e
    except DAMAGE as e:
        raise errors.CatalogError(
            "statistics-damaged",
            f"{uri} is damaged ({type(e).__name__}: {e}): run the same convert command again with --overwrite, "
            "or remove the file, without which the dataset can be read",
        ) from e
    return found


def _check_statistics(found: Any) -> None:
    """Raises TypeError, or another error of DAMAGE, if a field that readers use has another shape."""
    for split, counted in found.items():
        pixels = counted.get("pixels") or {"images": 0, "mean": [0], "std": [0]}
        counts = [pixels["images"], *(counted.get(side, {}).get("max", 0) for side in ("height", "width"))]
        num_channels = {len([float(each) for each in pixels[name]]) for name in ("mean", "std")}
        is_right = all(isinstance(each, int) for each in counts) and num_channels <= {1, 3}
        if not is_right or not isinstance(counted.get("formats", {}), dict):
            raise TypeError(f"{split!r} holds {counted!r:.60}")
