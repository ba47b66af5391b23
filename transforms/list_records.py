"""Lists the living records of a snapshot, so that they are ranked and copied like images."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage
from imagebeam.transforms import elements, image_states, snapshot_states

FRAME_BYTES = records.HEADER_BYTES + records.FOOTER_BYTES


class ListedRecords(NamedTuple):
    """The outputs of ListRecords."""

    records: beam.PCollection[elements.ImageRef]  # offset and length are of the record with its frame
    reject_states: beam.PCollection[elements.NamedFile]  # of images that were rejected, for the next update


class _NameShardsFn(beam.DoFn):
    """The folder of a snapshot -> the index of each shard, and of each file of rejects after them."""

    def process(self, folder: str) -> Iterator[int]:
        yield from range(len(snapshot_states.SnapshotStates(folder)))


class _ListRecordsFn(beam.DoFn):
    """The index of a shard -> its living records, and the states of images that were rejected."""

    def __init__(self, folder: str):
        self._folder = folder
        self._states: snapshot_states.SnapshotStates | None = None

    def process(self, index: int) -> Iterator[Any]:
        if self._states is None:
            self._states = snapshot_states.SnapshotStates(self._folder)
        read = self._states.read(index)
        if read.rejects:
            state = image_states.encode_state(image_states.ShardState((), read.rejects))
            name = image_states.rejects_name(read.snapshot, index)
            yield beam.pvalue.TaggedOutput("reject_states", (name, state))
        if read.shard is None:
            return
        uri = storage.join_relative(self._folder, read.shard.name)
        offsets = _offsets_of(self._folder, read.shard, self._states.catalog.compression)
        removed = frozenset(read.removed)
        for record, (image, (start, end)) in enumerate(zip(read.images, itertools.pairwise(offsets))):
            if record not in removed:
                yield elements.ImageRef(
                    image.key,
                    uri,
                    size=image.num_bytes,
                    offset=start,
                    length=end - start,
                    position=image.position,
                    label=image.labels,
                    split=read.split,
                    facts=image.facts,
                    content=image.content,
                )


def _offsets_of(folder: str, shard: catalog_lib.Shard, compression: str) -> Sequence[int]:
    """Returns where each record of a shard begins in its unpacked content, and the end of the last one.

    Raises:
        ShardError: if the index or the shard does not fit the catalog.
    """
    if compression == "none":
        uri = storage.join_relative(folder, shard.index_name)
        data = storage.storage_of(uri).read(uri)
        if records.extend_crc(0, data) != shard.index_crc32c:
            raise errors.ShardError(f"index {uri} differs from the catalog; run imagebeam verify")
        return records.decode_index(data)
    uri = storage.join_relative(folder, shard.name)
    offsets, end = [], 0
    with storage.storage_of(uri).open_read(uri) as file:
        for record in records.read_records(file, compression):
            offsets.append(record.offset)
            end = record.offset + len(record.data) + FRAME_BYTES
    if len(offsets) != shard.records:
        raise errors.ShardError(f"shard {uri} holds {len(offsets):,} records, the catalog says {shard.records:,}")
    return [*offsets, end]


class ListRecords(beam.PTransform):
    """Lists the living records of the snapshot in a folder."""

    def __init__(self, folder: str):
        super().__init__()
        self._folder = folder

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, pipeline: beam.Pipeline) -> ListedRecords:
        listed = (
            pipeline
            | "Snapshot" >> beam.Create([self._folder])
            | "NameShards" >> beam.ParDo(_NameShardsFn()).with_output_types(int)
            | "SpreadShards" >> beam.Reshuffle()
            | "ListRecords"
            >> beam.ParDo(_ListRecordsFn(self._folder))
            .with_output_types(elements.ImageRef, reject_states=elements.NamedFile)
            .with_outputs("reject_states", main="records")
        )
        return ListedRecords(listed.records, listed.reject_states)
