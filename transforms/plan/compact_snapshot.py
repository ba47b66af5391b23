"""The steps that only `imagebeam compact` has: lists the living records of a snapshot, and plans their new shards.

Records, and the images that the snapshot rejected, are ranked like images.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage
from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.plan import decide_plan, plan_dataset
from imagebeam.transforms.snapshots import image_states

FRAME_BYTES = records.HEADER_BYTES + records.FOOTER_BYTES

KnownReject = tuple[bytes, tuple[int, image_states.RejectState]]  # key, snapshot that rejected the image, its state
KeyedReject = tuple[bytes, elements.Reject]


class ListedRecords(NamedTuple):
    """The outputs of ListRecords."""

    refs: beam.PCollection[step.RefBatch]  # as snapshot_refs makes them
    early_rejects: beam.PCollection[elements.Reject]  # those that take no place in the order
    reject_states: beam.PCollection[elements.NamedFile]  # the part of them that came as far as a shard


def _name_shards(folder: str) -> Iterator[int]:
    """The folder of a snapshot -> the index of each shard, and of each file of rejects after them."""
    yield from range(len(image_states.SnapshotStates(folder)))


class _ListRecordsFn(beam.DoFn):
    """The index of a shard -> its living records, and the states of images that were rejected."""

    def __init__(self, folder: str):
        self._folder = folder
        self._states: image_states.SnapshotStates | None = None

    def process(self, index: int) -> Iterator[Any]:
        if self._states is None:
            self._states = image_states.SnapshotStates(self._folder)
        read = self._states.read(index)
        for state in read.rejects:
            yield beam.pvalue.TaggedOutput("known", (elements.encode_key(state.reject.key), (read.snapshot, state)))
        if read.shard is None:
            return
        uri = storage.join_relative(self._folder, read.shard.name)
        offsets = offsets_of(self._folder, read.shard, self._states.catalog.compression)
        removed = frozenset(read.removed)
        yield from step.batch(
            image_states.of_record(image, read.split, uri, start, end)
            for record, (image, (start, end)) in enumerate(zip(read.images, itertools.pairwise(offsets)))
            if record not in removed
        )


def _read_rejects(folder: str) -> Iterator[Any]:
    """The folder of a snapshot -> its rejects: (key, reject) of those that came as far as a shard, and the others."""
    for reject in image_states.read_rejects(folder):
        if reject.stage in elements.STAGES_OF_SHARDS:
            yield beam.pvalue.TaggedOutput("late", (elements.encode_key(reject.key), reject))
        else:
            yield reject


def _match_rejects(element: tuple[bytes, Mapping[str, Iterable[Any]]], splits: frozenset[str]) -> Iterator[Any]:
    """(key, rejects of the snapshot and states of rejected images) -> references; rejects without a place; states.

    States of images that were removed or repaired since are left over. The newest one of a key is that of its reject.
    An image has no place if the snapshot has no example of its split.
    """
    _, found = element
    known = sorted(found["known"], key=operator.itemgetter(0))
    for reject in sorted(found["late"]):
        if not known:
            yield beam.pvalue.TaggedOutput("early", reject)
            continue
        snapshot, state = known.pop()
        if state.split in splits:
            yield step.RefBatch([image_states.of_reject(state._replace(reject=reject))])
        else:
            yield beam.pvalue.TaggedOutput("early", reject)
            yield beam.pvalue.TaggedOutput("states", (snapshot, state))


def _encode_states(element: tuple[int, Iterable[image_states.RejectState]]) -> elements.NamedFile:
    snapshot, rejects = element
    state = image_states.ShardState((), sorted(rejects, key=lambda state: state.reject.key))
    return image_states.rejects_name(snapshot), image_states.encode_state(state)


def offsets_of(folder: str, shard: catalog_lib.Shard, compression: str) -> Sequence[int]:
    """Returns where each record of a shard begins in its unpacked content, and the end of the last one.

    Raises:
        ShardError: if the index or the shard does not fit the catalog.
    """
    if compression == "none":
        uri = storage.join_relative(folder, shard.index_name)
        data = storage.storage_of(uri).read(uri)
        if records.extend_crc(0, data) != shard.index_crc32c:
            raise errors.ShardError("index-differs", f"index {uri} differs from the catalog; run imagebeam verify")
        return records.decode_index(data)
    uri = storage.join_relative(folder, shard.name)
    offsets, end = [], 0
    with storage.storage_of(uri).open_read(uri) as file:
        for record in records.read_records(file, compression):
            offsets.append(record.offset)
            end = record.offset + len(record.data) + FRAME_BYTES
    if len(offsets) != shard.records:
        raise errors.ShardError(
            "shard-records-differ", f"shard {uri} holds {len(offsets):,} records, the catalog says {shard.records:,}"
        )
    return [*offsets, end]


class ListRecords(beam.PTransform):
    """Lists what the snapshot in a folder holds, but for records that are removed."""

    def __init__(self, folder: str, splits: Iterable[str]):
        super().__init__()
        self._folder, self._splits = folder, frozenset(splits)

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, pipeline: beam.Pipeline) -> ListedRecords:
        snapshot = pipeline | "Snapshot" >> beam.Create([self._folder])
        listed = (
            snapshot
            | "NameShards" >> beam.FlatMap(_name_shards).with_output_types(int)
            | "SpreadShards" >> beam.Reshuffle()
            | "ListRecords"
            >> beam.ParDo(_ListRecordsFn(self._folder))
            .with_output_types(step.RefBatch, known=KnownReject)
            .with_outputs("known", main="refs")
        )
        rejects = snapshot | "ReadRejects" >> beam.FlatMap(_read_rejects).with_output_types(
            elements.Reject, late=KeyedReject
        ).with_outputs("late", main="early")
        matched = (
            {"known": listed.known, "late": rejects.late}
            | "ByKey" >> beam.CoGroupByKey()  # (key, {known: [(snapshot, RejectState)], late: [Reject]})
            | "MatchRejects"
            >> beam.FlatMap(_match_rejects, splits=self._splits)
            .with_output_types(step.RefBatch, early=elements.Reject, states=tuple[int, image_states.RejectState])
            .with_outputs("early", "states", main="refs")
        )
        batches = (step.typed(listed.refs), step.typed(matched.refs))
        refs = step.typed(batches | "AllRefs" >> beam.Flatten())
        early = (rejects.early, matched.early) | "EarlyRejects" >> beam.Flatten()
        states = (
            matched.states
            | "BySnapshot" >> beam.GroupByKey()  # (snapshot, [RejectState])
            | "EncodeStates" >> beam.Map(_encode_states).with_output_types(elements.NamedFile)
        )
        return ListedRecords(refs, early, states)


# --- the plan --------------------------------------------------------------------------------------------------------


def plan_compaction(
    settings: dataset_settings.DatasetSettings,
    compacted: catalog_lib.Catalog,
    ranking: summaries.Ranking,
    rejected: Mapping[str, int],
) -> elements.DatasetPlan:
    """Returns the plan to write all living records of a snapshot into new shards.

    Args:
        settings: of the new snapshot.
        compacted: catalog of the snapshot whose records are copied.
        ranking: of these records, and of the images that were rejected while shards were written.
        rejected: number of all other rejects, by reason.
    """
    snapshot = _snapshot_of(settings)
    splits = {}
    for split in decide_plan.in_order(settings, compacted.splits):
        num_records, num_bytes = ranking.total(split), ranking.num_bytes[split]
        num_shards = settings.sizing.shards_of(split, num_records, num_bytes)
        splits[split] = elements.SplitPlan(num_records, num_bytes, num_shards)
    parts = ("compacted", compacted.fingerprint)
    return elements.DatasetPlan(
        action="write",
        message="",
        fingerprint=hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest(),
        splits=splits,
        labels=compacted.labels,
        listed=compacted.counts.listed,
        rejected=dict(sorted(rejected.items())),
        skipped=compacted.counts.skipped,
        inputs=compacted.inputs,
        snapshot={
            **compacted.snapshot,
            "name": snapshot.name,
            "base": None,
            "compacted": snapshot.compacted,
            "added": 0,
            "changed": 0,
            "removed": 0,
            "unchanged": compacted.counts.written,
        },
    )


def _snapshot_of(settings: dataset_settings.DatasetSettings) -> dataset_settings.SnapshotSettings:
    assert settings.snapshot is not None, "only snapshots are compacted"
    return settings.snapshot


class _PlanCompactionFn(beam.DoFn):
    """-> DatasetPlan, Ranking; also writes a report of the plan for the launcher."""

    def __init__(self, settings: dataset_settings.DatasetSettings):
        self._settings = settings

    def process(
        self, _: bytes, rankings: Iterable[summaries.PartialRanking], rejected: Mapping[str, int]
    ) -> Iterator[Any]:
        begun = time.time()
        ranking = summaries.merge_rankings(rankings)
        compacted = catalog_lib.load_catalog(_snapshot_of(self._settings).compacted_folder)
        yield plan_dataset.finish_plan(
            self._settings, plan_compaction(self._settings, compacted, ranking, rejected), begun
        )
        yield beam.pvalue.TaggedOutput("ranking", ranking)


def _take_over_transform(
    plan: elements.DatasetPlan, settings: dataset_settings.DatasetSettings
) -> Iterator[elements.DatasetPlan]:
    """DatasetPlan -> DatasetPlan; stages the saved transform of columns."""
    if plan.action == "write" and settings.analyze is not None:
        staging = settings.paths.staging(plan.fingerprint)
        storage.storage_of(staging).make_directories(staging)
        output_folder.stage(_snapshot_of(settings).compacted_folder, staging)
    yield plan


def _reason_of(reject: elements.Reject) -> str:
    return reject.reason.value


@decorators.with_input_types(summaries.PartialRanking)
@dataclasses.dataclass
class PlanCompaction(step.Step):
    """The partial rankings of the records -> the whole ranking, and the plan."""

    settings: dataset_settings.DatasetSettings
    early_rejects: beam.PCollection[elements.Reject]  # those that take no place in the order

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, rankings: beam.PCollection[summaries.PartialRanking]) -> plan_dataset.PlannedDataset:
        reasons = self.early_rejects | "Reasons" >> beam.Map(_reason_of).with_output_types(str)
        rejected = reasons | "CountReasons" >> beam.combiners.Count.PerElement()  # (reason, number)
        planned = plan_dataset.plan_once(
            rankings, _PlanCompactionFn(self.settings), rejected=beam.pvalue.AsDict(rejected)
        )
        take_over = beam.FlatMap(_take_over_transform, settings=self.settings).with_output_types(elements.DatasetPlan)
        return plan_dataset.PlannedDataset(planned.plan | "TakeOverTransform" >> take_over, planned.ranking)
