"""Finds out what the output of a run holds before it begins, and which of the files imagebeam has written itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, shard_names, snapshots, storage, verify_shards
from imagebeam.transforms.classes import object_classes
from imagebeam.transforms.output import output_paths, tfds_metadata

TRANSFORM_FOLDERS = ("transform_fn", "transformed_metadata")  # names given by tf.Transform

_WRITTEN_FILES = (
    catalog_lib.LABELS_FILE,
    catalog_lib.MASK_LABELS_FILE,
    object_classes.LABEL_MAP_FILE,
    catalog_lib.STATISTICS_FILE,
    catalog_lib.REPORT_PAGE_FILE,
    *tfds_metadata.LOADED_BY,
)


@dataclasses.dataclass(frozen=True)
class OutputFolder:
    """The folder of a dataset, as it is in the storage: missing, empty, or with files of one or several datasets."""

    uri: str

    @property
    def metadata(self) -> str:
        return output_paths.OutputPaths(self.uri).metadata

    def find_unnamed_shards(self, suffix: str) -> list[str]:
        """Returns the files named like shards that no catalog of imagebeam names, sorted. A commit keeps them."""
        candidates = verify_shards.find_unnamed_shards(self.uri, (), (suffix,))
        if not candidates:
            return []
        named = self.named_files()
        return [name for name in candidates if name not in named]

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
            elif entry.name.startswith(output_paths.REPLACED_PREFIX):
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
                damage = sizes.compare(shard.name, shard.bytes)
                if damage is None and committed.compression == "none":
                    damage = sizes.compare(shard.index_name, shard.index_file.bytes)
                if damage is None and shard.state_file is not None:
                    damage = sizes.compare(shard.state_name, shard.state_bytes)
                if damage is not None:
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
    """Returns the names of the shards in its folder, of their indexes, and of the states of their images."""
    every = (shard for split in catalog.splits.values() for shard in split.shards if not shard.is_elsewhere)
    return {name for shard in every for name in files_of_shard(shard, catalog)}


def files_of_shard(shard: catalog_lib.Shard, catalog: catalog_lib.Catalog) -> list[str]:
    """Returns the name of a shard, of its index, and of the state of its images, as far as the dataset has them."""
    indexes = [shard.index_name] if catalog.compression == "none" else []
    if catalog.indexed:  # its shards belong to the user
        return indexes
    return [shard.name, *indexes, *([shard.state_name] if catalog.snapshot else [])]


def _shards_in(text: str) -> set[str]:
    """Returns the shards and indexes in the text of a catalog that was edited or is of another version.

    Only names of shards count: a damaged catalog is no reason to remove any other file.
    """
    names: set[str] = set()
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        whole = json.loads(text)
        for split in () if "indexed" in whole else whole["splits"].values():
            for fields in split["shards"]:
                name = str(fields["name"])
                if shard_names.is_shard_name(name, (shard_names.suffix_of(name),)) and "/" not in name:
                    names |= {name, catalog_lib.Shard(name, 0, 0, 0).index_name}
    return names


def _entries_of(folder: str) -> list[storage.Entry]:
    try:
        return list(storage.storage_of(folder).list_directory(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def refuse_unnamed_shards(output: str, names: list[str]) -> str:
    """Returns the error text for files named like shards that no catalog names."""
    them = "it" if len(names) == 1 else "them"
    return (
        f"{output} holds {plural.name_some(names)}, which no {catalog_lib.CATALOG_FILE} names; choose another "
        f"--output, or move or delete {them}: --overwrite replaces only what a catalog names, and readers that list "
        f"the folder would read {them} with the dataset"
    )
