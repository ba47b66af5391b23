"""Writes shards of records that other shards hold already: no image is decoded, and each record keeps its bytes."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator

from imagebeam import errors, records
from imagebeam.transforms import elements
from imagebeam.transforms.shard import (
    image_hashes,
    shard_writer,
    statistics,
    writer_processes,
)
from imagebeam.transforms.shard import (
    read_ahead as read_ahead_lib,
)
from imagebeam.transforms.snapshots import snapshot_refs


@dataclasses.dataclass(frozen=True)
class RecordCopier(shard_writer.ShardWriter):
    """Writes shards like `ShardWriter`, of the references of `snapshot_refs`."""

    def _write_records(
        self,
        writer: records.RecordWriter,
        task: shard_writer.ShardTask,
        counts: statistics.StatisticsBuilder,
        hashes: list[image_hashes.HashedImage] | None,  # None: no image is decoded
    ) -> Iterator[tuple[elements.ImageRef, elements.Measures | elements.Reject]]:
        copied = (ref for ref in task.refs() if snapshot_refs.reject_of(ref) is None)
        fetched = read_ahead_lib.fetch(copied, self.read_ahead)
        for number, ref in enumerate(task.refs()):
            writer_processes.note_progress(number)
            if (reject := snapshot_refs.reject_of(ref)) is not None:
                yield ref, reject
                continue
            _, data = next(fetched)
            if isinstance(data, read_ahead_lib.ReadError):
                raise errors.ShardError(f"shard {ref.uri}: the record of {ref.key!r} cannot be read ({data.detail})")
            try:
                (record,) = records.read_records(io.BytesIO(data))
            except (errors.RecordError, ValueError) as e:
                raise errors.ShardError(
                    f"shard {ref.uri}: the record of {ref.key!r} at byte offset {ref.offset} is broken ({e}); run "
                    "imagebeam verify"
                ) from e
            writer.write(record.data)
            yield ref, snapshot_refs.measures_of(ref)
