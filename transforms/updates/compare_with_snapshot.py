"""Compares listed images with those of the snapshot before: only new and changed images go on to be written.

Listed images and the states of known images meet in intervals of a checksum of the key, so no
worker holds more than an interval of either.
"""

import array
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators

from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.shard import read_ahead as read_ahead_lib
from imagebeam.transforms.shard import read_images
from imagebeam.transforms.snapshots import image_states
from imagebeam.transforms.updates import compare_images

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
            row: tuple[Any, ...] = (
                *ref[: compare_images.FINGERPRINT_OF_REF],
                image_states.fingerprint_of(ref, self._keep_position),
            )
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
        if index == compare_images.REJECTS_FILE:
            known = compare_images.known_rejects(self._settings.base_folder)
        else:
            known = compare_images.known_images(self._states.read(index), index)
        for image in known:
            if image.reject is None or index == compare_images.REJECTS_FILE or not self._settings.retry_rejects:
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
        self._others = _no_others()

    def start_bundle(self) -> None:
        self._others = _no_others()

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
                yield from _outputs(compare_images.compare_with_rejects(*rows))
                continue
            self._others.add(compare_images.find_others(*rows, by_content=self._settings.by_content))
            if not self._settings.by_content or len(self._others.listed) >= _MAX_OTHERS:
                yield from self._compare_others()

    def _compare_others(self) -> Iterator[Any]:
        others, self._others = self._others, _no_others()
        compared = compare_images.compare(others, self._read_contents if self._settings.by_content else None)
        step.count(step.COMPARED, compared.comparison.compared_contents)
        yield from _outputs(compared)

    def _read_contents(self, refs: Iterable[elements.ImageRef]) -> Iterator[elements.ImageRef]:
        for ref, files in read_images.read_files(refs, self._read_ahead):
            yield read_images.add_content(ref, files)


def _no_others() -> compare_images.Others:
    return compare_images.Others([], [], collections.Counter())


def _outputs(compared: compare_images.Compared) -> Iterator[Any]:
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
            yield compare_images.REJECTS_FILE


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
