"""The folder of a dataset: its addresses, the files in it, and the catalog that is committed there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, records, snapshots, storage, verify_shards
from imagebeam.transforms import elements
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.output import croissant
from imagebeam.transforms.packed import packed_file

INPUTS_FILE = "inputs.json"  # in the staging folder: what the dataset is made of, see run_report
STAGED_FILES = "files.json"  # in the staging folder: sizes and checksums of tf.Transform's staged output
LOCK_FILE = "lock"  # in the metadata folder
LAST_RUN_FILE = "last-run.json"  # in the metadata folder: how a job ended badly, see pipelines.runs.remote_job
REPLACED_PREFIX = "replaced-"  # in the metadata folder, followed by a fingerprint: the catalog that it replaced
REPORT_PREFIX = "run-"  # in the metadata folder: the report of a run
DRIFT_REPORT_FILE = "report.json"  # in the metadata folder, of a snapshot that was refused: see snapshot_report
NAMES_PREFIX = "names-"  # in the metadata folder: staged names of a run, see label_names


def new_run_id() -> str:
    """Returns an id for one run. It signs the lock and names the report."""
    return secrets.token_hex(8)


@dataclasses.dataclass(frozen=True)
class OutputPaths:
    """Addresses below the folder of one dataset."""

    output: str

    @property
    def metadata(self) -> str:
        """The metadata folder: the lock, staged shards and reports; a commit removes it."""
        return storage.join(self.output, catalog_lib.METADATA_DIRECTORY)

    @property
    def lock(self) -> str:
        """The record of the run that writes to the output, see run_record."""
        return storage.join(self.metadata, LOCK_FILE)

    @property
    def last_run(self) -> str:
        """The record of the last job, if it ended badly."""
        return storage.join(self.metadata, LAST_RUN_FILE)

    @property
    def commit_lock(self) -> str:
        """The record of the run that commits. It exists until the dataset is complete."""
        return storage.join(self.metadata, catalog_lib.COMMIT_LOCK_FILE)

    @property
    def catalog(self) -> str:
        return storage.join(self.output, catalog_lib.CATALOG_FILE)

    def staging(self, fingerprint: str) -> str:
        """The folder where shards wait for the commit."""
        return storage.join(self.metadata, f"{catalog_lib.STAGING_PREFIX}{fingerprint}")

    def replaced(self, fingerprint: str) -> str:
        """The address to which the catalog of the dataset that this one replaces is moved."""
        return storage.join(self.metadata, f"{REPLACED_PREFIX}{fingerprint}.json")

    def report(self, run_id: str) -> str:
        """The address of the report of one run."""
        return storage.join(self.metadata, f"{REPORT_PREFIX}{run_id}.json")

    @property
    def drift_report(self) -> str:
        """The address of the report of a snapshot that was refused because it drifts too far."""
        return storage.join(self.metadata, DRIFT_REPORT_FILE)

    def names_file(self, run_id: str) -> str:
        """The address of the staged names of one run."""
        return storage.join(self.metadata, f"{NAMES_PREFIX}{run_id}.json")

    def spill(self, run_id: str) -> str:
        """The folder for the bytes of images that a pipeline brings, until the commit: see packed_file."""
        return storage.join(self.metadata, f"{packed_file.SPILL_PREFIX}{run_id}")

    def new_transform_folder(self) -> str:
        """An address for tf.Transform's output, before it is staged."""
        return storage.join(self.metadata, f"transform-{secrets.token_hex(4)}")

    def beam_folder(self, report: str) -> str:
        """The folder where `beam.io.WriteToTFRecord` writes, until its files are moved to the staging folder.

        Args:
            report: of the run, whose name the folder shares.
        """
        return storage.join(self.metadata, "beam-" + report.rpartition("/")[2].removesuffix(".json"))


_ATTEMPTS = 5  # a catalog may be replaced while it is read


class FoundCatalog(NamedTuple):
    """A `catalog.json`, as one read found it."""

    record: elements.Committed
    catalog: catalog_lib.Catalog | None  # None if it cannot be read
    error: errors.CatalogError | None  # why it cannot be read


def find_catalog(output: str) -> FoundCatalog | None:
    """Returns the catalog in the folder `output`; None if there is none.

    Raises:
        OSError: if the storage does not answer.
    """
    uri = storage.join(output, catalog_lib.CATALOG_FILE)
    store = storage.storage_of(uri)
    for attempt in range(_ATTEMPTS):
        try:
            version = store.stat(uri).version
            data = store.read(uri, version=version)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except storage.ChangedError:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        except OSError as e:
            if storage.is_fault(e):
                raise
            problem = errors.CatalogError(
                "catalog-unreadable", f"{uri} cannot be read ({e.strerror or e}); grant read access to it"
            )
            return FoundCatalog(elements.Committed("", version), None, problem)
        return _describe(uri, version, data)
    raise AssertionError("the last attempt returns or raises")


def _describe(uri: str, version: int, data: bytes) -> FoundCatalog:
    catalog, error = None, None
    try:
        catalog = catalog_lib.Catalog.from_json(data.decode("utf-8", "replace"), uri)
    except errors.CatalogError as e:
        error = e
    fingerprint = "" if catalog is None else catalog.fingerprint
    record = elements.Committed(fingerprint, version, len(data), records.extend_crc(0, data))
    return FoundCatalog(record, catalog, error)


def has_bytes_of(uri: str, record: elements.Committed) -> bool:
    """Returns whether the file at `uri` exists and holds the bytes of the catalog that was recorded."""
    try:
        data = storage.storage_of(uri).read(uri)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return record.bytes < 0
    return record.bytes in (-1, len(data)) and record.crc32c in (-1, records.extend_crc(0, data))


def describe(catalog: catalog_lib.Catalog | None) -> str:
    """Returns text such as `pets, 100 images, written 2026-01-31T12:00:00+00:00`; None is a catalog that is damaged."""
    if catalog is None:
        return "a catalog that cannot be read"
    return f"{catalog.name}, {plural.count(catalog.counts.written, 'image')}, written {catalog.created}"


def stage(folder: str, staging: str) -> None:
    """Copies tf.Transform's output into a staging folder, and writes a list of the files there for the commit."""
    files = {}
    source, target = storage.storage_of(folder), storage.storage_of(staging)
    for name in sorted(_files_below(folder)):
        data = source.read(storage.join(folder, name))
        uri = storage.join(staging, name)
        target.make_directories(uri.rpartition("/")[0])
        target.write_whole(uri, data)
        files[name] = catalog_lib.entry_of(data)
    target.write_whole(storage.join(staging, STAGED_FILES), json.dumps(files).encode())


def _files_below(folder: str) -> Iterator[str]:
    store = storage.storage_of(folder)
    waiting = list(TRANSFORM_FOLDERS)
    while waiting:
        inner = waiting.pop()
        for entry in store.list_directory(storage.join(folder, inner)):
            name = f"{inner}/{entry.name}"
            if entry.kind == storage.DIRECTORY:
                waiting.append(name)
            else:
                yield name


TRANSFORM_FOLDERS = ("transform_fn", "transformed_metadata")  # names given by tf.Transform
TFDS_FILES = ("dataset_info.json", "features.json")  # TensorFlow Datasets needs both to find a dataset

_WRITTEN_FILES = (
    catalog_lib.LABELS_FILE,
    catalog_lib.MASK_LABELS_FILE,
    class_names.LABEL_MAP_FILE,
    catalog_lib.STATISTICS_FILE,
    catalog_lib.REPORT_PAGE_FILE,
    *TFDS_FILES,
    croissant.FILE,
)


@dataclasses.dataclass(frozen=True)
class OutputFolder:
    """The folder of a dataset, as it is in the storage: missing, empty, or with files of one or several datasets."""

    uri: str

    @property
    def metadata(self) -> str:
        return OutputPaths(self.uri).metadata

    def refuse_unnamed_shards(self, suffix: str) -> None:
        """Raises ConfigError if there are files named like shards that no catalog names: a commit would keep them."""
        candidates = verify_shards.find_unnamed_shards(self.uri, (), (suffix,))
        named = self.named_files() if candidates else set()
        if names := [name for name in candidates if name not in named]:
            them = "it" if len(names) == 1 else "them"
            raise errors.ConfigError(
                "output-unnamed-shards",
                f"{self.uri} holds {plural.name_some(names)}, which no {catalog_lib.CATALOG_FILE} names; choose "
                f"another --output, or move or delete {them}: --overwrite replaces only what a catalog names, and "
                f"readers that list the folder would read {them} with the dataset",
            )

    def find_stray_file(self, with_transform: bool) -> str | None:
        """Returns a file that every commit writes but no catalog of imagebeam names; None if there is none.

        With `with_transform`, the folders of tf.Transform count too.
        """
        ours_by_name = (*_WRITTEN_FILES, *(TRANSFORM_FOLDERS if with_transform else ()))
        found = sorted(entry.name for entry in _entries_of(self.uri) if entry.name in ours_by_name)
        if not found:
            return None
        named = {name.partition("/")[0] for name in self.named_files()}
        return next((name for name in found if name not in named), None)

    def find_files_of_others(self) -> list[str]:
        """Returns every file below the folder that imagebeam did not write, sorted. Hidden files are left out."""
        found = set(self._walk("", frozenset()))
        if not found:
            return []
        ours = self.named_files() | {catalog_lib.CATALOG_FILE, catalog_lib.REJECTS_FILE, snapshots.LATEST_FILE}
        return sorted(found - ours)

    def _walk(self, folder: str, ancestors: frozenset[tuple[int, int]]) -> Iterator[str]:
        for entry in _entries_of(storage.join(self.uri, folder) if folder else self.uri):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(".") or (folder == snapshots.DIRECTORY and self._is_snapshot(entry.name)):
                continue
            if entry.kind != storage.DIRECTORY:
                yield name
            elif entry.identity not in ancestors:  # links may form a circle
                yield from self._walk(name, ancestors | {entry.identity})

    def _is_snapshot(self, name: str) -> bool:
        """Returns whether a folder in that of the snapshots is one, or was begun."""
        folder = snapshots.folder_of(self.uri, name)
        begun = (catalog_lib.CATALOG_FILE, catalog_lib.METADATA_DIRECTORY, catalog_lib.STATE_DIRECTORY)
        return snapshots.is_name(name) and any(entry.name in begun for entry in _entries_of(folder))

    def named_files(self) -> set[str]:
        """Returns the files of the committed dataset, of datasets it replaced, and of interrupted commits."""
        return self._files_in(storage.join(self.uri, catalog_lib.CATALOG_FILE)) | self.left_files()

    def left_files(self) -> set[str]:
        """Returns the files of replaced datasets and of interrupted commits."""
        names = set()
        for entry in _entries_of(self.metadata):
            uri = storage.join(self.metadata, entry.name)
            if entry.kind == storage.DIRECTORY:
                names |= self._files_in(storage.join(uri, catalog_lib.CATALOG_FILE))
            elif entry.name.startswith(REPLACED_PREFIX):
                names |= self._files_in(uri)
        return names

    def staging_folders(self) -> list[str]:
        """Returns the staging folders of runs that did not finish."""
        entries = (entry for entry in _entries_of(self.metadata) if entry.kind == storage.DIRECTORY)
        return sorted(
            storage.join(self.metadata, entry.name)
            for entry in entries
            if entry.name.startswith(catalog_lib.STAGING_PREFIX)
        )

    def find_damage(self, committed: catalog_lib.Catalog, thoroughly: bool) -> str | None:
        """Describes how the files of the committed dataset differ from its catalog; None if they do not.

        The sizes come from a listing of each of its folders, not from a request for each shard.

        Args:
            committed: the catalog.
            thoroughly: whether to read all files, as `imagebeam verify` does; otherwise only sizes are compared.
        """
        sizes = _ListedSizes(self.uri)
        for split in committed.splits.values():
            for shard in split.shards:
                expected = {each.name: each.entry.bytes for each in shard.side_files(committed.compression)}
                for name, num_bytes in {shard.name: shard.bytes, **expected}.items():
                    if damage := sizes.compare(name, num_bytes):
                        return damage
                if thoroughly and (problems := verify_shards.verify_shard(self.uri, shard, committed.compression)):
                    return str(problems[0])
        for name in sorted(files_of(committed) - {catalog_lib.CATALOG_FILE} - _shards_of(committed)):
            file = committed.files.get(name)
            if damage := sizes.compare(name, None if file is None else file.bytes):
                return damage
            if thoroughly and file is not None and (problems := verify_shards.verify_file(self.uri, name, file)):
                return str(problems[0])
        return None

    @staticmethod
    def _files_in(uri: str) -> set[str]:
        """Returns the files that the catalog at `uri` names; none if it does not exist: that run moved nothing."""
        try:
            text = storage.storage_of(uri).read(uri).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return set()
        try:
            return files_of(catalog_lib.Catalog.from_json(text, uri))
        except errors.CatalogError:
            return _shards_in(text)


class _ListedSizes:
    """The sizes of the files of a dataset. Each folder is listed when the first file in it is asked for."""

    def __init__(self, uri: str):
        self._uri = uri
        self._by_folder: dict[str, dict[str, int]] = {}

    def compare(self, name: str, num_bytes: int | None) -> str | None:
        """Describes how a file differs from `num_bytes`; if that is None, only whether the file is missing."""
        folder, _, last = name.rpartition("/")
        if folder not in self._by_folder:
            self._by_folder[folder] = sizes_in(storage.join_relative(self._uri, folder) if folder else self._uri)
        size = self._by_folder[folder].get(last)
        if size is None:
            return f"{name} is missing"
        if num_bytes is None or size in (-1, num_bytes):
            return None
        return f"{name} has {size:,} bytes, the catalog says {num_bytes:,}"


def sizes_in(folder: str) -> dict[str, int]:
    """Returns the bytes of each file in a folder, -1 where the storage does not tell; {} if there is no folder."""
    return {entry.name: entry.size for entry in _entries_of(folder) if entry.kind == storage.FILE}


def files_of(catalog: catalog_lib.Catalog) -> set[str]:
    """Returns the files of a dataset, relative to its folder."""
    if catalog.indexed:
        return {catalog_lib.CATALOG_FILE, *catalog.files} | _shards_of(catalog)
    names = {catalog_lib.CATALOG_FILE, catalog_lib.STATISTICS_FILE, catalog_lib.REJECTS_FILE, *catalog.files}
    if catalog.labels:
        names.add(catalog_lib.LABELS_FILE)
    return names | _shards_of(catalog)


def _shards_of(catalog: catalog_lib.Catalog) -> set[str]:
    """Returns the names of the shards in its folder, and of the files beside them."""
    every = (shard for split in catalog.splits.values() for shard in split.shards if not shard.is_elsewhere)
    return {name for shard in every for name in files_of_shard(shard, catalog)}


def files_of_shard(shard: catalog_lib.Shard, catalog: catalog_lib.Catalog) -> list[str]:
    """Returns the name of a shard, and of the files beside it."""
    beside = [each.name for each in shard.side_files(catalog.compression)]
    return beside if catalog.indexed else [shard.name, *beside]  # indexed shards belong to the user


def _shards_in(text: str) -> set[str]:
    """Returns the shards, and the files beside them, in the text of a catalog that was edited or has another version.

    Only names of shards count: a damaged catalog is no reason to remove any other file.
    """
    names: set[str] = set()
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        whole = json.loads(text)
        for split in () if "indexed" in whole else whole["splits"].values():
            for fields in split["shards"]:
                name = str(fields["name"])
                if records.is_shard_name(name, (records.suffix_of(name),)) and "/" not in name:
                    shard = catalog_lib.Shard(name, 0, 0, 0, sizes_crc32c=0)
                    names |= {name, *(each.name for each in shard.side_files("none"))}
    return names


def _entries_of(folder: str) -> list[storage.Entry]:
    try:
        return list(storage.storage_of(folder).list_directory(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
