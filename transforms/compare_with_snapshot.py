"""Compares listed images with those of the snapshot before: only new and changed images go on to be read.

Listed images and the states of known images meet in intervals of the hash of the key, as in rank_references, so no
worker holds more than an interval of either.
"""

import array
import collections
import dataclasses
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators
from apache_beam.utils import windowed_value

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import (
    elements,
    hashing,
    image_states,
    rank_references,
    snapshot_settings,
    snapshot_states,
    summaries,
)

_MAX_PENDING = 50_000  # rows that a bundle holds before it packs them: 30 MB
_MAX_PART_ROWS = 400_000  # of an interval that are objects at the same time: 200 MB
_MAX_DUPLICATES = 5  # named in the comparison
_DIGEST_BITS = 128
_NO_RECORD = -1
_REJECTS_FILE = -1  # instead of the index of a shard


PackedRows = tuple[int, bytes]  # number of rows, packed rows


class KnownImage(NamedTuple):
    """An image of the snapshot before: one of its records, or an image that was rejected instead."""

    key: str
    facts: bytes
    snapshot: int  # number of the snapshot that wrote it
    shard: int  # index in the catalog of the snapshot before
    record: int  # index in the shard; -1 for a reject
    split: str
    labels: tuple[str, ...]
    reject: elements.Reject | None


_KEY, _REF_FACTS = 0, elements.ImageRef._fields.index("facts")
_FACTS, _RECORD, _SPLIT = map(KnownImage._fields.index, ("facts", "record", "split"))


class ComparedImages(NamedTuple):
    """The outputs of CompareWithSnapshot."""

    images: beam.PCollection[elements.ImageRef]  # to be read and written, each with its facts
    rejects: beam.PCollection[elements.Reject]  # of unchanged images that were rejected before
    removed: beam.PCollection[elements.RemovedRecords]
    comparison: beam.PCollection[summaries.Comparison]  # one element


class _SpreadListedFn(beam.DoFn):
    """ImageRef -> (interval, packed references with their facts)."""

    def __init__(self, keep_position: bool):
        self._keep_position = keep_position
        self._pending = _PendingRows()

    def start_bundle(self) -> None:
        self._pending = _PendingRows()

    def process(self, ref: elements.ImageRef) -> Iterator[tuple[int, PackedRows]]:
        # a tuple, not an ImageRef: nearly all images have not changed, and are never looked at again
        self._pending.add(ref.key, (*ref[:_REF_FACTS], image_states.facts_of(ref, self._keep_position)))
        if self._pending.is_full:
            yield from self._pending.take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        yield from map(window.GlobalWindows.windowed_value, self._pending.take())


class _ReadStatesFn(beam.DoFn):
    """Index of a shard in the catalog of the snapshot before -> (interval, packed rows of its images and rejects)."""

    def __init__(self, settings: snapshot_settings.SnapshotSettings):
        self._settings = settings
        self._states: snapshot_states.SnapshotStates | None = None

    def process(self, index: int) -> Iterator[tuple[int, PackedRows]]:
        if self._states is None:
            self._states = snapshot_states.SnapshotStates(self._settings.base_folder)
        pending = _PendingRows()
        if index == _REJECTS_FILE:
            known = known_rejects(self._settings.base_folder)
        else:
            known = known_images(self._states.read(index), index)
        for image in known:
            if image.reject is None or index == _REJECTS_FILE or not self._settings.retry_rejects:
                pending.add(image.key, image)
                if pending.is_full:
                    yield from pending.take()
        yield from pending.take()


def known_images(states: snapshot_states.ShardStates, index: int) -> Iterator[KnownImage]:
    """Yields the images of a shard that belong to the snapshot, and those rejected while it was written.

    Args:
        states: of the shard.
        index: of the shard in the catalog.
    """
    removed, number = frozenset(states.removed), states.snapshot
    for record, image in enumerate(states.images):
        if record not in removed:
            yield KnownImage(image.key, image.facts, number, index, record, states.split, image.labels, None)
    for facts, reject in states.rejects:
        yield KnownImage(reject.key, facts, number, index, _NO_RECORD, states.split, (), reject)


def known_rejects(folder: str) -> Iterator[KnownImage]:
    """Yields all rejects of the snapshot in a folder, also of images that never came as far as a shard."""
    uri = storage.join(folder, catalog_lib.REJECTS_FILE)
    with storage.storage_of(uri).open_read(uri) as file:
        for line in file:
            fields = json.loads(line)
            reject = elements.Reject(**fields | {"reason": elements.Reason(fields["reason"])})
            yield KnownImage(reject.key, b"", 0, _REJECTS_FILE, _NO_RECORD, "", (), reject)


class _PendingRows:
    """Rows by interval, packed when they have become many."""

    def __init__(self) -> None:
        self._rows: dict[int, list[tuple[Any, ...]]] = collections.defaultdict(list)
        self._num_rows = 0

    @property
    def is_full(self) -> bool:
        return self._num_rows >= _MAX_PENDING

    def add(self, key: str, row: tuple[Any, ...]) -> None:
        self._rows[zlib.crc32(hashing.encode_key(key)) % rank_references.NUM_INTERVALS].append(row)
        self._num_rows += 1

    def take(self) -> Iterator[tuple[int, PackedRows]]:
        rows, self._rows, self._num_rows = self._rows, collections.defaultdict(list), 0
        for interval, each in rows.items():
            yield interval, (len(each), elements.pack_rows(each))


class _CompareFn(beam.DoFn):
    """(interval, listed and known images in it) -> images to write; rejects, removed records, and a Comparison."""

    def __init__(self, retry_rejects: bool):
        self._compare = compare_with_rejects if retry_rejects else compare

    def process(self, element: tuple[int, Mapping[str, Iterable[PackedRows]]]) -> Iterator[Any]:
        _, found = element
        listed, known = list(found["listed"]), list(found["known"])
        num_rows = sum(num_rows for num_rows, _ in itertools.chain(listed, known))
        num_parts = -(-num_rows // _MAX_PART_ROWS)
        for part in range(num_parts):
            compared = self._compare(
                list(_rows_of_part(listed, part, num_parts)), list(_rows_of_part(known, part, num_parts))
            )
            yield from compared.images
            for reject in compared.rejects:
                yield beam.pvalue.TaggedOutput("rejects", reject)
            for shard, records in compared.removed.items():
                yield beam.pvalue.TaggedOutput("removed", (shard, array.array("I", records).tobytes()))
            yield beam.pvalue.TaggedOutput("comparisons", compared.comparison)


def _rows_of_part(blocks: Iterable[PackedRows], part: int, num_parts: int) -> Iterator[tuple[Any, ...]]:
    """Yields the rows whose key belongs to one of the parts of an interval."""
    for _, packed in blocks:
        for row in elements.unpack_rows(packed):
            if num_parts == 1 or hashing.hash64(row[0], 0, b"imagebeam.part") % num_parts == part:
                yield row


class Compared(NamedTuple):
    """What became of the images of one part of the keys."""

    images: list[elements.ImageRef]  # to be read and written
    rejects: list[elements.Reject]  # unchanged
    removed: dict[int, list[int]]  # records by the index of their shard
    comparison: summaries.Comparison


Rows: TypeAlias = Sequence[tuple[Any, ...]]


def compare(listed: Rows, known: Rows) -> Compared:
    """Compares all listed and all known images of some keys.

    Args:
        listed: fields of ImageRefs.
        known: fields of KnownImages.
    """
    same = _find_same_keys(listed, known)
    unchanged = collections.Counter(row[_SPLIT] for row in known if row[_RECORD] != _NO_RECORD and row[_KEY] in same)
    compared = _compare_others(
        [elements.ImageRef(*row) for row in listed if row[_KEY] not in same],
        [KnownImage(*row) for row in known if row[_KEY] not in same],
    )
    comparison = compared.comparison._replace(unchanged=unchanged)
    return compared._replace(comparison=comparison)


def _find_same_keys(listed: Rows, known: Rows) -> set[str]:
    """Returns the keys whose record is that of the listed image: nearly all, so that only their keys are looked at."""
    facts = {row[_KEY]: row[_REF_FACTS] for row in listed}
    if len(facts) < len(listed):  # some are listed twice
        counts = collections.Counter(row[_KEY] for row in listed)
        facts = {key: each for key, each in facts.items() if counts[key] == 1}
    return {row[_KEY] for row in known if row[_RECORD] != _NO_RECORD and facts.get(row[_KEY]) == row[_FACTS]}


def _compare_others(listed: Sequence[elements.ImageRef], known: Sequence[KnownImage]) -> Compared:
    """Compares images none of which is the same.

    An image has at most one record, and rejects of earlier snapshots may be left over: the record counts, otherwise the
    reject of the newest snapshot.
    """
    rows: dict[str, KnownImage] = {}
    for image in known:
        other = rows.get(image.key)
        if other is None or _rank(image) > _rank(other):
            rows[image.key] = image
    images, rejects = [], []
    counts: dict[str, collections.Counter[str]] = {
        name: collections.Counter() for name in ("added", "changed", "removed")
    }
    removed: dict[int, list[int]] = collections.defaultdict(list)
    removed_labels: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    digest = 0

    def remove(row: KnownImage) -> None:
        nonlocal digest
        removed[row.shard].append(row.record)
        removed_labels[row.split].update(row.labels)
        digest = (digest + digest_of((row.shard, row.record))) % (1 << _DIGEST_BITS)

    seen: dict[str, tuple[int, str]] = {}
    duplicates: list[summaries.RepeatedKey] = []
    for ref in listed:
        if ref.key in seen:
            (first, uri), (second, second_uri) = sorted([seen[ref.key], (ref.position, ref.uri)])
            duplicates.append(summaries.RepeatedKey(ref.key, (uri, second_uri), (first, second)))
            continue
        seen[ref.key] = ref.position, ref.uri
        row = rows.get(ref.key)
        if row is not None and row.facts == ref.facts and row.reject is not None:
            rejects.append(row.reject)
            continue
        images.append(ref)
        if row is None or row.record == _NO_RECORD:
            counts["added"][ref.split] += 1
        else:
            counts["changed"][row.split] += 1
            remove(row)
    for key, row in rows.items():
        if key not in seen and row.record != _NO_RECORD:
            counts["removed"][row.split] += 1
            remove(row)
    comparison = summaries.Comparison(
        **counts,
        removed_labels=dict(removed_labels),
        kept_rejects=len(rejects),
        kept_rejects_digest=_digest_rejects(rejects),
        digest=digest,
        duplicates=tuple(sorted(duplicates)[:_MAX_DUPLICATES]),
        num_duplicates=len(duplicates),
    )
    return Compared(images, rejects, removed, comparison)


def compare_with_rejects(listed: Rows, known: Rows) -> Compared:
    """Compares like `compare`, but lets only images go on that were rejected before; no other image is touched."""
    unchanged = collections.Counter(row[_SPLIT] for row in known if row[_RECORD] != _NO_RECORD)
    rows = {row[_KEY]: KnownImage(*row) for row in known if row[_RECORD] == _NO_RECORD}
    images = {row[_KEY]: elements.ImageRef(*row) for row in listed if row[_KEY] in rows}
    rejects = [row.reject for key, row in rows.items() if row.reject is not None and key not in images]
    added = collections.Counter(ref.split for ref in images.values())
    comparison = summaries.Comparison(
        unchanged, added, kept_rejects=len(rejects), kept_rejects_digest=_digest_rejects(rejects)
    )
    return Compared(list(images.values()), rejects, {}, comparison)


def _digest_rejects(rejects: Iterable[elements.Reject]) -> int:
    return sum(map(summaries.digest_reject, rejects)) % (1 << _DIGEST_BITS)


def _rank(image: KnownImage) -> tuple[bool, int]:
    return image.record != _NO_RECORD, image.snapshot


def digest_of(facts: Any) -> int:
    """Returns a digest that can be added up in any order."""
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=_DIGEST_BITS // 8).digest(), "big")


@dataclasses.dataclass
class _Merged:
    """Comparisons added up so far; the result does not depend on the order of adding."""

    counts: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    removed_labels: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    kept_rejects: int = 0
    kept_rejects_digest: int = 0
    digest: int = 0
    duplicates: tuple[summaries.RepeatedKey, ...] = ()
    num_duplicates: int = 0

    def add(self, part: summaries.Comparison) -> None:
        for name in ("unchanged", "added", "changed", "removed"):
            self.counts.setdefault(name, collections.Counter()).update(getattr(part, name))
        for split, labels in part.removed_labels.items():
            self.removed_labels.setdefault(split, collections.Counter()).update(labels)
        self.kept_rejects += part.kept_rejects
        self.kept_rejects_digest = (self.kept_rejects_digest + part.kept_rejects_digest) % (1 << _DIGEST_BITS)
        self.digest = (self.digest + part.digest) % (1 << _DIGEST_BITS)
        self.duplicates = tuple(sorted((*self.duplicates, *part.duplicates))[:_MAX_DUPLICATES])
        self.num_duplicates += part.num_duplicates

    def result(self) -> summaries.Comparison:
        counts = {name: dict(sorted(each.items())) for name, each in self.counts.items()}
        labels = {split: dict(sorted(each.items())) for split, each in sorted(self.removed_labels.items())}
        return summaries.Comparison(
            **counts,
            removed_labels=labels,
            kept_rejects=self.kept_rejects,
            kept_rejects_digest=self.kept_rejects_digest,
            digest=self.digest,
            duplicates=self.duplicates,
            num_duplicates=self.num_duplicates,
        )


class _MergeComparisonsFn(beam.CombineFn):
    """Comparisons of parts -> the whole Comparison."""

    def create_accumulator(self) -> _Merged:
        return _Merged()

    def add_input(self, merged: _Merged, part: summaries.Comparison) -> _Merged:
        merged.add(part)
        return merged

    def merge_accumulators(self, accumulators: Iterable[_Merged]) -> _Merged:
        merged = _Merged()
        for each in accumulators:
            merged.add(each.result())
        return merged

    def extract_output(self, merged: _Merged) -> summaries.Comparison:
        return merged.result()


class _NameShardsFn(beam.DoFn):
    """-> the index of each file of states in the snapshot before."""

    def __init__(self, settings: snapshot_settings.SnapshotSettings):
        self._settings = settings

    def process(self, _: bytes) -> Iterator[int]:
        if self._settings.base:
            yield from range(len(snapshot_states.SnapshotStates(self._settings.base_folder)))
            if self._settings.retry_rejects:
                yield _REJECTS_FILE


@decorators.with_input_types(elements.ImageRef)
@dataclasses.dataclass
class CompareWithSnapshot(beam.PTransform):
    """Leaves out the images that the snapshot before has already, and finds the records that it has no more.

    Without a snapshot before, all images go on.
    """

    settings: snapshot_settings.SnapshotSettings
    keep_position: bool  # whether the row in the source counts, as it does where the row decides the order

    def __post_init__(self) -> None:
        super().__init__()

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[elements.ImageRef]) -> ComparedImages:
        rows = tuple[int, PackedRows]
        listed = refs | "SpreadListed" >> beam.ParDo(_SpreadListedFn(self.keep_position)).with_output_types(rows)
        known = (
            refs.pipeline
            | "StartCompare" >> beam.Impulse()
            | "NameShards" >> beam.ParDo(_NameShardsFn(self.settings)).with_output_types(int)
            | "SpreadShards" >> beam.Reshuffle()
            | "ReadStates" >> beam.ParDo(_ReadStatesFn(self.settings)).with_output_types(rows)
        )
        compared = (
            {"listed": listed, "known": known}
            | "Meet" >> beam.CoGroupByKey()  # (interval, {listed: [PackedRows], known: [PackedRows]})
            | "Compare"
            >> beam.ParDo(_CompareFn(self.settings.retry_rejects))
            .with_output_types(
                elements.ImageRef,
                rejects=elements.Reject,
                removed=elements.RemovedRecords,
                comparisons=summaries.Comparison,
            )
            .with_outputs("rejects", "removed", "comparisons", main="images")
        )
        comparison = compared.comparisons | "MergeComparisons" >> beam.CombineGlobally(_MergeComparisonsFn())
        return ComparedImages(compared.images, compared.rejects, compared.removed, comparison)
