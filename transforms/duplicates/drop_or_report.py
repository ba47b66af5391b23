"""Drops images that repeat others before anything is planned, or reports them once shards are written.

To drop them takes a pass over all images; a report needs the hashes that shard writers leave. The plan decides the
number of files in which reported duplicates are stored, see `step.key_by_file`.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements, step
from imagebeam.transforms.duplicates import find_duplicates
from imagebeam.transforms.images import prepare
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.shard import image_hashes, read_images, shard_writer, writer_processes
from imagebeam.transforms.shard import read_ahead as read_ahead_lib

_TASK_REFS = 500  # read by one call, so that reading ahead pays and all processes are busy
_MAX_WAITING = 16  # unfinished calls in writer processes


class DistinctImages(NamedTuple):
    """The outputs of DropDuplicates."""

    images: beam.PCollection[step.RefBatch]
    rejects: beam.PCollection[elements.Reject]  # also those of earlier steps
    duplicates: "beam.PCollection[elements.Duplicate] | None" = None  # that were dropped; None if nothing is dropped


class _SpreadFn(step.SpreadRowsFn):
    """References -> (interval of keys, packed references)."""

    def process(self, refs: step.RefBatch) -> Iterator[step.PackedRows]:
        for ref in refs:
            self.add(step.interval_of_key(ref.key), ref)
        if self.is_full:
            yield from self.take()


class _HashImagesFn(beam.DoFn):
    """(interval, [packed references]) -> packed rows of HashedImage. Reads the images, in writer processes if any."""

    def __init__(self, reader: read_images.ImageReader, writers: str | None):
        self._reader = reader
        self._writers = writers  # token of the writer processes that the launcher started

    def start_bundle(self) -> None:
        # one object: it is sent to a process once
        self._hash: Callable[[read_images.HashTask], bytes] = self._reader.hash_images
        self._refs: list[elements.ImageRef] = []
        self._futures: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[bytes]:
        _, blocks = element
        for block in blocks:
            self._refs += elements.unpack_refs(block)
            while len(self._refs) >= _TASK_REFS:
                refs, self._refs = self._refs[:_TASK_REFS], self._refs[_TASK_REFS:]
                yield from self._read(refs)

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        blocks = [*(self._read(self._refs) if self._refs else ())]
        blocks += [future.result() for future in self._futures]
        yield from map(window.GlobalWindows.windowed_value, blocks)

    def _read(self, refs: list[elements.ImageRef]) -> Iterator[bytes]:
        task = read_images.HashTask(elements.pack_refs(refs))
        pool = writer_processes.find(self._writers)
        if pool is None:
            yield self._hash(task)
            return
        self._futures.append(pool.submit(self._hash, task, writer_processes.without_killer))
        while len(self._futures) > _MAX_WAITING or (self._futures and self._futures[0].done()):
            yield self._futures.popleft().result()


def _key_by_interval(duplicate: elements.Duplicate) -> tuple[int, elements.Duplicate]:
    return step.interval_of_key(duplicate.key), duplicate


def _drop(element: tuple[int, Mapping[str, Iterable[Any]]]) -> Iterator[Any]:
    """(interval, references and duplicates in it) -> references that stay, and rejects."""
    _, found = element
    dropped = {duplicate.key: duplicate for duplicate in found["duplicates"]}
    for block in found["refs"]:
        refs = elements.unpack_refs(block)
        yield from step.batch(ref for ref in refs if ref.key not in dropped)
        for ref in refs:
            if ref.key in dropped:
                yield beam.pvalue.TaggedOutput("rejects", reject_of(dropped[ref.key]))
    step.count_rejects({elements.Reason.DUPLICATE.value: len(dropped)})


def reject_of(duplicate: elements.Duplicate) -> elements.Reject:
    """Returns the dead letter of an image that repeats another one."""
    like = "it has the bytes of"
    if duplicate.kind == "near":
        like = f"its perceptual hash differs in {duplicate.distance} bits of {find_duplicates.HASH_BITS} from that of"
    first = f"{like} {duplicate.first_key!r} in split {duplicate.first_split}, {packed_file.shown(duplicate.first_uri)}"
    return elements.Reject(duplicate.key, duplicate.uri, "duplicates", elements.Reason.DUPLICATE, first)


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class DropDuplicates(step.Step):
    """Leaves one of several images that are the same, if `duplicates` drops the others; they become rejects."""

    settings: image_hashes.DuplicateSettings
    policy: prepare.ImagePolicy
    read_ahead: read_ahead_lib.ReadAhead
    rejects: beam.PCollection[elements.Reject]  # found by earlier steps

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> DistinctImages:
        dropping = self.settings.only("drop")
        hasher = dropping.hasher(self.policy.limits)
        if hasher is None:
            return DistinctImages(refs, self.rejects)
        reader = read_images.ImageReader(self.policy, self.read_ahead, hasher)
        spread = refs | "SpreadByKey" >> beam.ParDo(_SpreadFn()).with_output_types(step.PackedRows)
        duplicates = (
            spread
            | "GroupToRead" >> beam.GroupByKey()  # (interval, [packed references])
            | "HashImages"
            >> beam.ParDo(_HashImagesFn(reader, writer_processes.current_token())).with_output_types(bytes)
            | "Balance" >> beam.Reshuffle()  # packed rows of HashedImage
            | "FindDuplicates" >> find_duplicates.FindDuplicates(dropping)  # Duplicate
        )
        keyed = duplicates | "KeyDuplicates" >> beam.Map(_key_by_interval).with_output_types(
            tuple[int, elements.Duplicate]
        )
        kept = (
            {"refs": spread, "duplicates": keyed}
            | "MeetDuplicates" >> beam.CoGroupByKey()  # (interval, {refs: [packed rows], duplicates: [Duplicate]})
            | "Drop"
            >> beam.FlatMap(_drop)
            .with_output_types(step.RefBatch, rejects=elements.Reject)
            .with_outputs("rejects", main="images")
        )
        rejects = (self.rejects, kept.rejects) | "AllRejects" >> beam.Flatten()
        return DistinctImages(step.typed(kept.images), rejects, duplicates)


# --- report ----------------------------------------------------------------------------------------------------------


def _read_hashes(
    written: elements.WrittenShard, paths: output_folder.OutputPaths, plan: elements.DatasetPlan
) -> Iterator[bytes]:
    """WrittenShard -> packed rows of its HashedImages."""
    yield elements.pack_rows(shard_writer.read_hashes(paths.staging(plan.fingerprint), written))


_IMAGES_PER_FILE = 100_000


def count_files(plan: elements.DatasetPlan) -> int:
    """Returns the number of files for the duplicates of a plan; 0 if nothing is written."""
    return step.count_files(plan.listed, _IMAGES_PER_FILE) if plan.action == "write" else 0


def _store(
    element: tuple[int, Iterable[elements.Duplicate]], paths: output_folder.OutputPaths, plan: elements.DatasetPlan
) -> Iterator[image_hashes.StoredDuplicates]:
    """(file index, [Duplicate]) -> StoredDuplicates."""
    duplicates = sorted(element[1], key=lambda each: (each.kind, elements.encode_key(each.key)))
    duplicates = [
        each._replace(uri=packed_file.shown(each.uri), first_uri=packed_file.shown(each.first_uri))
        for each in duplicates
    ]
    lines = b"".join(json.dumps(each._asdict()).encode() + b"\n" for each in duplicates)
    staging = paths.staging(plan.fingerprint)
    name = step.stage_file(staging, "duplicates-", element[0], count_files(plan), ".jsonl", lines)
    counts: collections.Counter[tuple[str, str, str]]
    counts = collections.Counter((each.kind, each.split, each.first_split) for each in duplicates)
    of_kinds = (list(of_kind) for _, of_kind in itertools.groupby(duplicates, key=lambda each: each.kind))
    examples = [each for of_kind in of_kinds for each in of_kind[: image_hashes.NUM_EXAMPLES]]
    yield image_hashes.StoredDuplicates(name, dict(counts), tuple(examples))


@dataclasses.dataclass
class ReportDuplicates(step.Step):
    """Yields the staged files with all duplicates of a run: those found among written images, and those dropped.

    Yields nothing, and adds no step, if no duplicates are looked for.
    """

    settings: image_hashes.DuplicateSettings
    paths: output_folder.OutputPaths
    plan: beam.PCollection[elements.DatasetPlan]  # one element
    dropped: "beam.PCollection[elements.Duplicate] | None" = None

    def expand(
        self, written: beam.PCollection[elements.WrittenShard]
    ) -> "beam.PCollection[image_hashes.StoredDuplicates] | None":
        plan = beam.pvalue.AsSingleton(self.plan)
        reported = self.settings.only("report", "fail")
        found = [] if self.dropped is None else [self.dropped]
        if reported.is_on:
            found.append(
                written
                | "ReadHashes" >> beam.FlatMap(_read_hashes, paths=self.paths, plan=plan).with_output_types(bytes)
                | "FindDuplicates" >> find_duplicates.FindDuplicates(reported)  # Duplicate
            )
        if not found:
            return None
        return (
            found
            | "AllDuplicates" >> beam.Flatten()
            | "KeyByFile"
            >> beam.FlatMap(step.key_by_file, count_files, plan).with_output_types(tuple[int, elements.Duplicate])
            | "GroupByFile" >> beam.GroupByKey()  # (file index, [Duplicate])
            | "Store" >> beam.FlatMap(_store, self.paths, plan).with_output_types(image_hashes.StoredDuplicates)
        )
