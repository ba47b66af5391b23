"""Compares listed images with those of the snapshot before: only new and changed images go on to be written.

An image is the same if its fingerprint is: with `update.compare: content` also if all but the version is the same, and
its bytes are. Only bytes that decide are read. Listed images and the states of known images meet in intervals of a
checksum of the key, so no worker holds more than an interval of either.
"""

import array
import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators

from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.shard import read_ahead as read_ahead_lib
from imagebeam.transforms.shard import read_images
from imagebeam.transforms.snapshots import image_states

NO_RECORD = -1
REJECTS_FILE = -1  # instead of the index of a shard


class KnownImage(NamedTuple):
    """An image of the snapshot before: one of its records, or an image that was rejected instead."""

    key: str
    fingerprint: bytes
    snapshot: int  # number of the snapshot that wrote it
    shard: int  # index in the catalog of the snapshot before
    record: int  # index in the shard; -1 for a reject
    split: str
    labels: tuple[str, ...]
    reject: elements.Reject | None
    content: bytes = b""  # as in ImageState


# Reads references whose content has no digest of the bytes yet, in any order; without it where they cannot be read.
ReadContents: TypeAlias = Callable[[Iterable[elements.ImageRef]], Iterable[elements.ImageRef]]

_KEY, FINGERPRINT_OF_REF = 0, elements.ImageRef._fields.index("fingerprint")
_VERSION, _MASK, _EXTRA = map(elements.ImageRef._fields.index, ("version", "mask", "extra_images"))
_FINGERPRINT, _RECORD, _SPLIT = map(KnownImage._fields.index, ("fingerprint", "record", "split"))


def known_images(states: image_states.ShardStates, index: int) -> Iterator[KnownImage]:
    """Yields the images of a shard that belong to the snapshot, and those rejected while it was written.

    Args:
        states: of the shard.
        index: of the shard in the catalog.
    """
    removed, number = frozenset(states.removed), states.snapshot
    for record, image in enumerate(states.images):
        if record not in removed:
            where = number, index, record, states.split
            yield KnownImage(image.key, image.fingerprint, *where, image.labels, None, image.content)
    for each in states.rejects:
        where = number, index, NO_RECORD, each.split
        yield KnownImage(each.reject.key, each.fingerprint, *where, (), each.reject, each.content)


class Compared(NamedTuple):
    """Comparison result for one key partition."""

    images: list[elements.ImageRef]  # to be read and written
    rejects: list[elements.Reject]  # unchanged
    removed: dict[int, list[int]]  # records by the index of their shard
    comparison: summaries.Comparison


Rows: TypeAlias = Sequence[tuple[Any, ...]]


@dataclasses.dataclass
class Others:
    """Images whose fingerprint differs from that of the record with their key, or that have none."""

    listed: list[elements.ImageRef] = dataclasses.field(default_factory=list)
    known: list[KnownImage] = dataclasses.field(default_factory=list)
    # Number of all other listed images, by split.
    unchanged: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, others: "Others") -> None:
        """Takes over the images of other keys."""
        self.listed.extend(others.listed)
        self.known.extend(others.known)
        self.unchanged.update(others.unchanged)


def find_others(listed: Rows, known: Rows, by_content: bool = False) -> Others:
    """Sets the images apart that are not the same by their fingerprints. All images of some keys are given.

    Args:
        listed: fields of ImageRefs.
        known: fields of KnownImages.
        by_content: whether the same fingerprint without a version prove nothing.
    """
    same = _find_same_keys(listed, known, by_content)
    return Others(
        [elements.ImageRef(*row) for row in listed if row[_KEY] not in same],
        [KnownImage(*row) for row in known if row[_KEY] not in same],
        collections.Counter(row[_SPLIT] for row in known if row[_RECORD] != NO_RECORD and row[_KEY] in same),
    )


def _find_same_keys(listed: Rows, known: Rows, by_content: bool) -> set[str]:
    """Returns the keys whose record is that of the listed image: nearly all, so that only their keys are looked at."""
    fingerprints = {row[_KEY]: row[FINGERPRINT_OF_REF] for row in listed if not by_content or _has_version(row)}
    if len(fingerprints) < len(listed):  # some are listed twice
        counts = collections.Counter(row[_KEY] for row in listed)
        fingerprints = {key: each for key, each in fingerprints.items() if counts[key] == 1}
    return {
        row[_KEY] for row in known if row[_RECORD] != NO_RECORD and fingerprints.get(row[_KEY]) == row[_FINGERPRINT]
    }


def _has_version(row: tuple[Any, ...]) -> bool:
    """Returns whether the versions of all files of an image are known; given the fields of an ImageRef."""
    mask = row[_MASK]
    return bool(row[_VERSION]) and (mask is None or bool(mask.version)) and all(each.version for each in row[_EXTRA])


def compare(others: Others, read_contents: ReadContents | None = None) -> Compared:
    """Compares images that `find_others` has set apart, all of some keys.

    An image has at most one record, and rejects of earlier snapshots may be left over: the record counts, otherwise the
    reject of the newest snapshot.

    Args:
        others: the images.
        read_contents: reads the bytes that decide; None if an image with another version is another one.
    """
    listed, known = others.listed, others.known
    rows: dict[str, KnownImage] = {}
    for image in known:
        other = rows.get(image.key)
        if other is None or _rank(image) > _rank(other):
            rows[image.key] = image
    to_read = [] if read_contents is None else [ref for ref in listed if _may_be_same(ref, rows.get(ref.key))]
    found = () if read_contents is None else read_contents(to_read)
    contents = {ref.key: ref.content for ref in found if ref.content == rows[ref.key].content}
    unchanged = collections.Counter(others.unchanged)
    images, rejects = [], []
    added, changed, gone = (collections.Counter[str]() for _ in range(3))
    removed: dict[int, list[int]] = collections.defaultdict(list)
    removed_labels: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    digest = moved = 0

    def remove(row: KnownImage) -> None:
        nonlocal digest
        removed[row.shard].append(row.record)
        removed_labels[row.split].update(row.labels)
        digest = (digest + summaries.digest((row.shard, row.record))) % summaries.DIGEST_RANGE

    seen: dict[str, tuple[int, str]] = {}
    duplicates: list[summaries.RepeatedKey] = []
    for ref in listed:
        if ref.key in seen:
            (first, uri), (second, second_uri) = sorted([seen[ref.key], (ref.position, ref.uri)])
            duplicates.append(summaries.RepeatedKey(ref.key, (uri, second_uri), (first, second)))
            continue
        seen[ref.key] = ref.position, ref.uri
        row = rows.get(ref.key)
        has_same_content = ref.key in contents
        has_same_fingerprint = (
            row is not None and row.fingerprint == ref.fingerprint and (read_contents is None or _has_version(ref))
        )
        if row is not None and row.reject is not None and (has_same_content or has_same_fingerprint):
            rejects.append(row.reject)
        elif row is not None and has_same_content:
            unchanged[row.split] += 1
        elif row is None or row.record == NO_RECORD:
            images.append(ref)
            added[ref.split] += 1
        else:
            images.append(ref._replace(replaces=row.split))
            changed[ref.split] += 1
            moved += row.split != ref.split
            remove(row)
    for key, row in rows.items():
        if key not in seen and row.record != NO_RECORD:
            gone[row.split] += 1
            remove(row)
    comparison = summaries.Comparison(
        *(unchanged, added, changed, gone),
        removed_labels=dict(removed_labels),
        kept_rejects=len(rejects),
        kept_rejects_digest=_digest_rejects(rejects),
        digest=digest,
        duplicates=tuple(sorted(duplicates)[: summaries.MAX_DUPLICATES]),
        num_duplicates=len(duplicates),
        compared_contents=len(to_read),
        same_contents=len(contents),
        moved=moved,
    )
    return Compared(images, rejects, removed, comparison)


def _may_be_same(ref: elements.ImageRef, row: KnownImage | None) -> bool:
    """Returns whether all but the version is that of a known image, so that its bytes decide."""
    if row is None or not row.content or (_has_version(ref) and row.fingerprint == ref.fingerprint):
        return False
    return row.content[: image_states.STABLE_BYTES] == ref.content


def compare_with_rejects(listed: Rows, known: Rows) -> Compared:
    """Compares like `compare`, but lets only images go on that were rejected before; no other image is touched."""
    unchanged = collections.Counter(row[_SPLIT] for row in known if row[_RECORD] != NO_RECORD)
    rows = {row[_KEY]: KnownImage(*row) for row in known if row[_RECORD] == NO_RECORD}
    images = {row[_KEY]: elements.ImageRef(*row) for row in listed if row[_KEY] in rows}
    rejects = [row.reject for key, row in rows.items() if row.reject is not None and key not in images]
    added = collections.Counter(ref.split for ref in images.values())
    comparison = summaries.Comparison(
        unchanged, added, kept_rejects=len(rejects), kept_rejects_digest=_digest_rejects(rejects)
    )
    return Compared(list(images.values()), rejects, {}, comparison)


def _digest_rejects(rejects: Iterable[elements.Reject]) -> int:
    return sum(map(summaries.digest_reject, rejects)) % summaries.DIGEST_RANGE


def _rank(image: KnownImage) -> tuple[bool, int]:
    return image.record != NO_RECORD, image.snapshot


# --- the step --------------------------------------------------------------------------------------------------------

_MAX_PART_ROWS = 400_000  # rows of an interval that are Python objects at the same time: 200 MB
_MAX_OTHERS = 20_000  # images that a bundle holds before it reads their bytes: 10 MB
PackedRows = tuple[int, bytes]  # number of rows, packed rows


class ComparedImages(NamedTuple):
    """The outputs of CompareWithSnapshot."""

    images: beam.PCollection[step.RefBatch]  # to be read and written, each with its fingerprint
    rejects: beam.PCollection[elements.Reject]  # also of unchanged images that were rejected before
    removed: "beam.PCollection[elements.RemovedRecords] | None" = None
    comparison: "beam.pvalue.AsSingleton | None" = None  # a Comparison


class _SpreadFn(step.SpreadRowsFn):
    """Base of what spreads rows over the intervals of their keys. Each block says how many rows it has."""

    def pack(self, rows: list[tuple[Any, ...]]) -> PackedRows:
        return len(rows), elements.pack_rows(rows)


class _SpreadListedFn(_SpreadFn):
    """References -> (interval, packed references with their fingerprints)."""

    def __init__(self, keep_position: bool, by_content: bool):
        self._keep_position = keep_position
        self._by_content = by_content

    def process(self, refs: step.RefBatch) -> Iterator[tuple[int, PackedRows]]:
        for ref in refs:
            # a tuple, not an ImageRef: nearly all images have not changed, and are never looked at again
            row: tuple[Any, ...] = (*ref[:FINGERPRINT_OF_REF], image_states.fingerprint_of(ref, self._keep_position))
            if self._by_content:
                row = (*row, image_states.stable_fingerprint_of(ref, self._keep_position))
            self.add(step.interval_of_key(ref.key), row)
        if self.is_full:
            yield from self.take()


class _ReadStatesFn(_SpreadFn):
    """Index of a shard in the catalog of the snapshot before -> (interval, packed rows of its images and rejects)."""

    def __init__(self, settings: dataset_settings.SnapshotSettings):
        self._settings = settings
        self._states: image_states.SnapshotStates | None = None

    def process(self, index: int) -> Iterator[tuple[int, PackedRows]]:
        if self._states is None:
            self._states = image_states.SnapshotStates(self._settings.base_folder, with_measures=False)
        known: Iterable[KnownImage]
        if index == REJECTS_FILE:
            rejects = image_states.read_rejects(self._settings.base_folder)
            known = (KnownImage(each.key, b"", 0, index, NO_RECORD, "", (), each) for each in rejects)
        else:
            known = known_images(self._states.read(index), index)
        for image in known:
            if image.reject is None or index == REJECTS_FILE or not self._settings.retry_rejects:
                self.add(step.interval_of_key(image.key), image)
                if self.is_full:
                    yield from self.take()


class _CompareFn(beam.DoFn):
    """(interval, listed and known images in it) -> images to write; rejects, removed records, and Comparisons.

    Images whose bytes decide wait for those of other intervals until the bundle ends, so that many reads are in flight.
    """

    def __init__(self, settings: dataset_settings.SnapshotSettings, read_ahead: read_ahead_lib.ReadAhead):
        self._settings = settings
        self._read_ahead = read_ahead

    def start_bundle(self) -> None:
        self._others = Others()

    def finish_bundle(self) -> Iterator[Any]:
        for each in self._compare_others():
            if isinstance(each, beam.pvalue.TaggedOutput):
                yield beam.pvalue.TaggedOutput(each.tag, window.GlobalWindows.windowed_value(each.value))
            else:
                yield window.GlobalWindows.windowed_value(each)

    def process(self, element: tuple[int, Mapping[str, Iterable[PackedRows]]]) -> Iterator[Any]:
        _, found = element
        listed, known = list(found["listed"]), list(found["known"])
        num_rows = sum(num_rows for num_rows, _ in itertools.chain(listed, known))
        num_parts = -(-num_rows // _MAX_PART_ROWS)
        for part in range(num_parts):
            rows = list(_rows_of_part(listed, part, num_parts)), list(_rows_of_part(known, part, num_parts))
            if self._settings.retry_rejects:
                yield from _outputs(compare_with_rejects(*rows))
                continue
            self._others.add(find_others(*rows, by_content=self._settings.by_content))
            if not self._settings.by_content or len(self._others.listed) >= _MAX_OTHERS:
                yield from self._compare_others()

    def _compare_others(self) -> Iterator[Any]:
        others, self._others = self._others, Others()
        compared = compare(others, self._read_contents if self._settings.by_content else None)
        step.count(step.COMPARED, compared.comparison.compared_contents)
        yield from _outputs(compared)

    def _read_contents(self, refs: Iterable[elements.ImageRef]) -> Iterator[elements.ImageRef]:
        for ref, files in read_images.read_files(refs, self._read_ahead):
            yield read_images.add_content(ref, files)


def _outputs(compared: Compared) -> Iterator[Any]:
    """Yields the outputs of `_CompareFn`."""
    yield from step.batch(compared.images)
    for reject in compared.rejects:
        yield beam.pvalue.TaggedOutput("rejects", reject)
    for shard, records in compared.removed.items():
        yield beam.pvalue.TaggedOutput("removed", (shard, array.array("I", records).tobytes()))
    yield beam.pvalue.TaggedOutput("comparisons", compared.comparison)


def _rows_of_part(blocks: Iterable[PackedRows], part: int, num_parts: int) -> Iterator[tuple[Any, ...]]:
    """Yields the rows whose key belongs to one of the parts of an interval."""
    for _, packed in blocks:
        for row in elements.unpack_rows(packed):
            if num_parts == 1 or elements.hash64(row[0], 0, b"imagebeam.part") % num_parts == part:
                yield row


def _name_shards(_: bytes, settings: dataset_settings.SnapshotSettings) -> Iterator[int]:
    """-> the index of each file of states in the snapshot before."""
    if settings.base:
        yield from range(len(image_states.SnapshotStates(settings.base_folder)))
        if settings.retry_rejects:
            yield REJECTS_FILE


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class CompareWithSnapshot(step.Step):
    """Leaves out the images that the snapshot before has already, and finds the records that are gone from the input.

    Without a snapshot before, all images go on. Without snapshots, nothing is done.
    """

    settings: dataset_settings.SnapshotSettings | None  # None without snapshots
    rejects: beam.PCollection[elements.Reject]  # rejected while images are listed, labelled and split
    keep_position: bool  # whether the row in the source counts, as it does where the row decides the order
    read_ahead: read_ahead_lib.ReadAhead = read_ahead_lib.READ_AHEAD  # for images whose bytes are compared

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> ComparedImages:
        if self.settings is None:
            return ComparedImages(refs, self.rejects)
        rows = tuple[int, PackedRows]
        listed = refs | "SpreadListed" >> beam.ParDo(
            _SpreadListedFn(self.keep_position, self.settings.by_content)
        ).with_output_types(rows)
        known = (
            refs.pipeline
            | "StartCompare" >> beam.Impulse()
            | "NameShards" >> beam.FlatMap(_name_shards, settings=self.settings).with_output_types(int)
            | "SpreadShards" >> beam.Reshuffle()
            | "ReadStates" >> beam.ParDo(_ReadStatesFn(self.settings)).with_output_types(rows)
        )
        compared = (
            {"listed": listed, "known": known}
            | "Meet" >> beam.CoGroupByKey()  # (interval, {listed: [PackedRows], known: [PackedRows]})
            | "Compare"
            >> beam.ParDo(_CompareFn(self.settings, self.read_ahead))
            .with_output_types(
                step.RefBatch,
                rejects=elements.Reject,
                removed=elements.RemovedRecords,
                comparisons=summaries.Comparison,
            )
            .with_outputs("rejects", "removed", "comparisons", main="images")
        )
        merge = beam.CombineGlobally(summaries.merge_comparisons).as_singleton_view()
        comparison = compared.comparisons | "MergeComparisons" >> merge
        early = () if self.settings.retry_rejects else (self.rejects,)
        rejects = (*early, compared.rejects) | "AllRejects" >> beam.Flatten()
        return ComparedImages(step.typed(compared.images), rejects, compared.removed, comparison)
