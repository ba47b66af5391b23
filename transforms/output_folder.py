"""What lies in the output of a run before it begins, and which of it imagebeam has put there itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator

from imagebeam import catalog as catalog_lib
from imagebeam import errors, shard_names, storage, verify_shards
from imagebeam.transforms import tfds_metadata

REPLACED = "replaced-"  # in the control folder, and the fingerprint of a new dataset: the catalog of the one before it
TRANSFORM_FOLDERS = ("transform_fn", "transformed_metadata")  # as tf.Transform names them

_WRITTEN_FILES = (catalog_lib.LABELS_FILE, catalog_lib.STATISTICS_FILE, *tfds_metadata.LOADED_BY)
_MAX_NAMED = 5


@dataclasses.dataclass(frozen=True)
class OutputFolder:
    """The folder of a dataset: there or not, empty or not, of one dataset or of several that followed each other."""

    uri: str

    @property
    def control(self) -> str:
        return storage.join(self.uri, catalog_lib.CONTROL_DIRECTORY)

    def find_unnamed_shards(self, suffix: str) -> list[str]:
        """The files named like shards that no catalog of ours names, sorted: a commit does not touch them."""
        candidates = verify_shards.find_unnamed_shards(self.uri, (), (suffix,))
        if not candidates:
            return []
        named = self.named_files()
        return [name for name in candidates if name not in named]

    def find_stray_file(self, with_transform: bool) -> str | None:
        """A file that every commit writes, or with a transform a folder of it, and that no catalog of ours names."""
        ours_by_name = (*_WRITTEN_FILES, *(TRANSFORM_FOLDERS if with_transform else ()))
        found = sorted(entry.name for entry in _entries_of(self.uri) if entry.name in ours_by_name)
        if not found:
            return None
        named = {name.partition("/")[0] for name in self.named_files()}
        return next((name for name in found if name not in named), None)

    def find_files_of_others(self) -> list[str]:
        """Every file in the folder and below it that is not ours, sorted; hidden ones are no input and left out."""
        found = set(self._walk("", frozenset()))
        if not found:
            return []
        return sorted(found - self.named_files() - {catalog_lib.CATALOG_FILE, catalog_lib.REJECTS_FILE})

    def _walk(self, folder: str, ancestors: frozenset[tuple[int, int]]) -> Iterator[str]:
        for entry in _entries_of(storage.join(self.uri, folder) if folder else self.uri):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith("."):
                continue
            if entry.kind != storage.DIRECTORY:
                yield name
            elif entry.identity not in ancestors:  # links may lead in a circle
                yield from self._walk(name, ancestors | {entry.identity})

    def named_files(self) -> set[str]:
        """The files of the committed dataset, of those it replaced, and of commits that were cut short."""
        return self._files_in(storage.join(self.uri, catalog_lib.CATALOG_FILE)) | self.left_files()

    def left_files(self) -> set[str]:
        """Of these the ones that datasets which were replaced, and runs that died while they committed, put there."""
        names = set()
        for entry in _entries_of(self.control):
            uri = storage.join(self.control, entry.name)
            if entry.kind == storage.DIRECTORY:
                names |= self._files_in(storage.join(uri, catalog_lib.CATALOG_FILE))
            elif entry.name.startswith(REPLACED):
                names |= self._files_in(uri)
        return names

    def staging_folders(self) -> list[str]:
        """The folders in which runs that did not end keep what they have staged."""
        entries = (entry for entry in _entries_of(self.control) if entry.kind == storage.DIRECTORY)
        return sorted(
            storage.join(self.control, entry.name)
            for entry in entries
            if entry.name.startswith(catalog_lib.STAGING_PREFIX)
        )

    def find_damage(self, committed: catalog_lib.Catalog, thoroughly: bool) -> str | None:
        """How the files of the committed dataset differ from what its catalog says; None where they do not.

        Args:
            committed: the catalog.
            thoroughly: whether all files are read, as `imagebeam verify` does; else sizes are compared, a look each.
        """
        for split in committed.splits.values():
            for shard in split.shards:
                damage = self._compare_size(shard.name, shard.bytes)
                if damage is None and committed.compression == "none":
                    damage = self._compare_size(shard.index_name, shard.index_file.bytes)
                if damage is not None:
                    return damage
                if thoroughly and (problems := verify_shards.verify_shard(self.uri, shard, committed.compression)):
                    return str(problems[0])
        for name in sorted(files_of(committed) - {catalog_lib.CATALOG_FILE} - _shards_of(committed)):
            file = committed.files.get(name)
            if damage := self._compare_size(name, None if file is None else file.bytes):
                return damage
            if thoroughly and file is not None and (problems := verify_shards.verify_file(self.uri, name, file)):
                return str(problems[0])
        return None

    def _compare_size(self, name: str, num_bytes: int | None) -> str | None:
        """How a file differs from `num_bytes`, or with None that it is missing."""
        uri = storage.join(self.uri, name)
        try:
            size = storage.storage_of(uri).stat(uri).size
        except OSError:
            return f"{name} is missing"
        return None if num_bytes in (None, size) else f"{name} has {size:,} bytes, the catalog says {num_bytes:,}"

    @staticmethod
    def _files_in(uri: str) -> set[str]:
        """The files that the catalog at `uri` names; none where there is none: a run that moved nothing."""
        try:
            text = storage.storage_of(uri).read(uri).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return set()
        try:
            return files_of(catalog_lib.Catalog.from_json(text, uri))
        except errors.CatalogError:
            return _shards_in(text)


def files_of(catalog: catalog_lib.Catalog) -> set[str]:
    """The files of a dataset, below its folder."""
    names = {catalog_lib.CATALOG_FILE, catalog_lib.STATISTICS_FILE, catalog_lib.REJECTS_FILE, *catalog.files}
    # catalogs did not always name these
    names.update(tfds_metadata.tfds_files(catalog, suffix="", image_formats=set()))
    if catalog.labels:
        names.add(catalog_lib.LABELS_FILE)
    return names | _shards_of(catalog)


def _shards_of(catalog: catalog_lib.Catalog) -> set[str]:
    """The shards and their indexes."""
    every = [shard for split in catalog.splits.values() for shard in split.shards]
    indexes = [shard.index_name for shard in every] if catalog.compression == "none" else []
    return {*indexes, *(shard.name for shard in every)}


def _shards_in(text: str) -> set[str]:
    """The shards, with their indexes, in the text of a catalog that was edited or is of another version.

    Names of another form are left out: nothing else may be removed on the word of a catalog that is not whole.
    """
    names: set[str] = set()
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        for split in json.loads(text)["splits"].values():
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


def name_some(names: list[str]) -> str:
    """`a, b and 3 more`."""
    named = ", ".join(names[:_MAX_NAMED])
    return named if len(names) <= _MAX_NAMED else f"{named} and {len(names) - _MAX_NAMED:,} more"


def refuse_unnamed_shards(output: str, names: list[str]) -> str:
    """Why nothing is written beside these files, and what to do."""
    them = "it" if len(names) == 1 else "them"
    return (
        f"{output} holds {name_some(names)}, which no {catalog_lib.CATALOG_FILE} names; choose another --output, or "
        f"move or delete {them}: --overwrite replaces only what a catalog names, and readers that list the folder "
        f"would read {them} with the dataset"
    )
