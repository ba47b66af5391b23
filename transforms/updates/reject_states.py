"""Keeps the states of rejected images whose shard the snapshot does not name, as its split has no example.

Otherwise the next update would read them again, and write another snapshot that does not name them either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import elements
from imagebeam.transforms.shard import shard_writer
from imagebeam.transforms.snapshots import image_states, snapshot_settings


def of_base(
    settings: snapshot_settings.SnapshotSettings, base: catalog_lib.Catalog | None
) -> Iterator[tuple[str, bytes]]:
    """Yields the files of such states that the snapshot before has."""
    for name in base.files if base is not None else ():
        if image_states.is_rejects_name(name):
            uri = storage.join(settings.base_folder, name)
            yield name, storage.storage_of(uri).read(uri)


def of_shards(
    settings: snapshot_settings.SnapshotSettings, staging: str, lost: Iterable[elements.WrittenShard]
) -> Iterator[tuple[str, bytes]]:
    """Yields the file with the states of all images that were rejected while some shards were written.

    Args:
        settings: of the snapshot that is written.
        staging: its staging folder.
        lost: the shards, none of which has a record.
    """
    rejects: list[image_states.RejectState] = []
    for each in lost:
        uri = storage.join(staging, shard_writer.staged_state_name(each.shard))
        state = image_states.decode_state(storage.storage_of(uri).read(uri), each.shard.records, uri)
        rejects.extend(state.rejects)
    if rejects:
        yield (
            image_states.rejects_name(int(settings.name)),
            image_states.encode_state(image_states.ShardState((), rejects)),
        )
