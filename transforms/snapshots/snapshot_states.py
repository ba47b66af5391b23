"""Reads what a snapshot holds for the next update: which images its shards were written of, and which are removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import find_snapshot, records, storage
from imagebeam.transforms.snapshots import image_states


class ShardStates(NamedTuple):
    """The state of one shard; or of images that were rejected before the snapshot was compacted."""

    split: str  # "" without a shard
    shard: catalog_lib.Shard | None
    snapshot: int  # number of the snapshot that wrote it
    images: Sequence[image_states.ImageState]  # in the order of the records
    rejects: Sequence[image_states.RejectState]
    removed: Sequence[int]  # ascending indexes of records


class SnapshotStates:
    """The states of a snapshot, file by file."""

    def __init__(self, folder: str, with_measures: bool = True):
        self.catalog = catalog_lib.load_catalog(folder)
        self._folder = folder
        self._with_measures = with_measures
        self._shards = [(split, shard) for split, each in self.catalog.splits.items() for shard in each.shards]
        self._rejects = sorted(name for name in self.catalog.files if image_states.is_rejects_name(name))
        self._removed = find_snapshot.load_removed(folder, self.catalog)

    def __len__(self) -> int:
        """Returns the number of files: one for each shard, in the order of the catalog, then those of rejects."""
        return len(self._shards) + len(self._rejects)

    def read(self, index: int) -> ShardStates:
        """Reads one file.

        Raises:
            CatalogError: if it is missing, or is not that of the catalog.
        """
        if index >= len(self._shards):
            name = self._rejects[index - len(self._shards)]
            state = self._load(name, 0, self.catalog.files[name])
            return ShardStates("", None, image_states.snapshot_of_rejects(name), (), state.rejects, ())
        split, shard = self._shards[index]
        state = self._load(shard.state_name, shard.records, shard.state_file)
        number = int(shard.name.split("/")[1] if shard.is_elsewhere else self.catalog.snapshot["name"])
        return ShardStates(split, shard, number, state.images, state.rejects, self._removed.get(shard.name, ()))

    def _load(self, name: str, num_images: int, expected: catalog_lib.File | None) -> image_states.ShardState:
        uri = storage.join_relative(self._folder, name)
        try:
            data = storage.storage_of(uri).read(uri)
        except FileNotFoundError as e:
            raise image_states.damaged(uri, "it is gone") from e
        if expected is not None and len(data) != expected.bytes:
            raise image_states.damaged(uri, f"it has {len(data):,} bytes, the catalog says {expected.bytes:,}")
        if expected is not None and (found := records.extend_crc(0, data)) != expected.crc32c:
            crc32c = "none" if expected.crc32c is None else f"{expected.crc32c:08x}"
            raise image_states.damaged(uri, f"it has the crc32c {found:08x}, the catalog says {crc32c}")
        return image_states.decode_state(data, num_images, uri, self._with_measures)
