"""Finds the duplicates among written images, and stores all duplicates of a run until the commit.

The hash of a duplicate's key decides its file, and the plan decides the number of files. So the files are the same on
every runner, and none holds more than one worker can sort.
"""

import collections
import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam

from imagebeam import storage
from imagebeam.transforms import elements, step
from imagebeam.transforms.duplicates import duplicate_counts, find_duplicates
from imagebeam.transforms.duplicates.duplicate_counts import StoredDuplicates
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.shard import image_hashes, shard_writer

_MIN_FILES, _MAX_FILES = 16, 4096
_IMAGES_PER_FILE = 100_000


def _read_hashes(
    written: elements.WrittenShard, paths: output_folder.OutputPaths, plan: elements.DatasetPlan
) -> Iterator[bytes]:
    """WrittenShard -> packed rows of its HashedImages."""
    yield elements.pack_rows(shard_writer.read_hashes(paths.staging(plan.fingerprint), written))


def count_files(plan: elements.DatasetPlan) -> int:
    """Returns the number of files for the duplicates of a plan; 0 if nothing is written."""
    if plan.action != "write":
        return 0
    return min(_MAX_FILES, max(_MIN_FILES, -(-plan.listed // _IMAGES_PER_FILE)))


def _key_by_file(duplicate: elements.Duplicate, plan: elements.DatasetPlan) -> Iterator[tuple[int, elements.Duplicate]]:
    """Duplicate -> (file index, Duplicate)."""
    if num_files := count_files(plan):
        yield zlib.crc32(elements.encode_key(duplicate.key)) % num_files, duplicate


class _StoreFn(beam.DoFn):
    """(file index, [Duplicate]) -> StoredDuplicates."""

    def __init__(self, paths: output_folder.OutputPaths, kinds: Sequence[str]):
        self._paths = paths
        self._kinds = kinds

    def process(
        self, element: tuple[int, Iterable[elements.Duplicate]], plan: elements.DatasetPlan
    ) -> Iterator[StoredDuplicates]:
        index, duplicates = element[0], sorted(element[1], key=_order)
        width = len(str(count_files(plan) - 1))  # so that the order of names is that of the numbers
        name = f"duplicates-{index:0{width}d}.jsonl"
        staging = self._paths.staging(plan.fingerprint)
        store = storage.storage_of(staging)
        store.make_directories(staging)
        lines = b"".join(json.dumps(each._asdict()).encode() + b"\n" for each in duplicates)
        store.write_whole(storage.join(staging, name), lines, durable=False)
        counts: collections.Counter[tuple[str, str, str]] = collections.Counter(
            (each.kind, each.split, each.first_split) for each in duplicates
        )
        examples = [
            each
            for kind in self._kinds
            for each in [each for each in duplicates if each.kind == kind][: duplicate_counts.NUM_EXAMPLES]
        ]
        yield StoredDuplicates(name, dict(counts), tuple(examples))


def _order(duplicate: elements.Duplicate) -> tuple[str, bytes]:
    return duplicate.kind, elements.encode_key(duplicate.key)


@dataclasses.dataclass
class ReportDuplicates(step.Step):
    """Yields the staged files with all duplicates of a run: those found among written images, and those dropped.

    Yields nothing, and adds no step, if no duplicates are looked for.
    """

    settings: image_hashes.DuplicateSettings
    paths: output_folder.OutputPaths
    plan: beam.PCollection[elements.DatasetPlan]  # one element
    dropped: "beam.PCollection[elements.Duplicate] | None" = None

    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> "beam.PCollection[StoredDuplicates] | None":
        plan = beam.pvalue.AsSingleton(self.plan)
        store = _StoreFn(self.paths, tuple(self.settings.actions))
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
            | "KeyByFile" >> beam.FlatMap(_key_by_file, plan=plan).with_output_types(tuple[int, elements.Duplicate])
            | "GroupByFile" >> beam.GroupByKey()  # (file index, [Duplicate])
            | "Store" >> beam.ParDo(store, plan=plan).with_output_types(StoredDuplicates)
        )
