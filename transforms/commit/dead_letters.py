"""Stores the images rejected before their shard was written, and joins all rejects of a run into `rejects.jsonl`.

The number of rejects in the plan decides the number of files. The commit joins them in the order of their names.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, records, storage
from imagebeam.transforms import dataset_settings, elements, step
from imagebeam.transforms.shard import shard_writer

_COPY_BYTES = 1 << 20
_READS_AT_ONCE = 64  # over a network
_LARGE_READS_AT_ONCE = 16  # for files with the rejects of the listing, which have some MB each


class RejectFiles(NamedTuple):
    """Names of files in the staging folder, in their order in `rejects.jsonl`."""

    early: Sequence[str]  # rejected while images were listed and planned
    of_shards: Sequence[str]  # rejected while a shard was written


def join_rejects(
    staging: str, staged: RejectFiles, target: str, check: Callable[[], None] = lambda: None
) -> catalog_lib.File:
    """Concatenates files of rejects; returns size and checksum of the new file.

    Args:
        staging: the folder of the files.
        staged: their names.
        target: address of the new file.
        check: is called after each piece, so that the commit lock is renewed while there are many.
    """
    num_bytes = crc = 0
    with storage.storage_of(target).write_file(target) as pending:
        for chunk in _read_all(staging, staged):
            check()
            num_bytes, crc = num_bytes + len(chunk), records.extend_crc(crc, chunk)
            rest = memoryview(chunk)
            while rest:  # an unbuffered file may write only a part
                rest = rest[pending.file.write(rest) :]
        pending.checksum = num_bytes, crc
    return catalog_lib.File(num_bytes, crc)


def read_lines(staging: str, staged: RejectFiles) -> Iterator[bytes]:
    """Yields the lines of files of rejects, without their line breaks."""
    rest = b""
    for chunk in _read_all(staging, staged):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _read_all(staging: str, staged: RejectFiles) -> Iterator[bytes]:
    return itertools.chain(
        _read_in_order(staging, staged.early, _LARGE_READS_AT_ONCE),
        _read_in_order(staging, staged.of_shards, _READS_AT_ONCE),
    )


def _read_in_order(folder: str, names: Iterable[str], num_at_once: int) -> Iterator[bytes]:
    """Yields the content of files. Over a network whole files are read ahead: they are small, and there may be many."""
    store = storage.storage_of(folder)
    uris = (storage.join(folder, name) for name in names)
    if not store.is_local:
        yield from concurrency.map_ahead(store.read, uris, num_at_once)
        return
    for uri in uris:
        with store.open_read(uri) as file:
            while chunk := file.read(_COPY_BYTES):
                yield chunk


_REJECTS_PER_FILE = 20_000  # sorted in 15 MB; more only beyond 80 million rejects


def count_files(plan: elements.DatasetPlan) -> int:
    """Returns the number of files for the rejects of a plan; 0 if they are not stored."""
    if plan.action != "write" and plan.exit_code != errors.TooManyRejectsError.exit_code:
        return 0  # the output must stay as it is
    return step.count_files(sum(plan.rejected.values()), _REJECTS_PER_FILE)


def _store(
    element: tuple[int, Iterable[elements.Reject]],
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
) -> Iterator[str]:
    """(file index, [Reject]) -> name of the file in the staging folder."""
    content, staging = shard_writer.encode_rejects(sorted(element[1])), settings.paths.staging(plan.fingerprint)
    yield step.stage_file(staging, "early-", element[0], count_files(plan), shard_writer.REJECTS_SUFFIX, content)


@dataclasses.dataclass
class StoreDeadLetters(step.Step):
    """Writes rejects into files in the staging folder and yields the files' names."""

    settings: dataset_settings.DatasetSettings
    plan: beam.PCollection[elements.DatasetPlan]  # one element

    def expand(self, rejects: beam.PCollection[elements.Reject]) -> beam.PCollection[str]:
        plan = beam.pvalue.AsSingleton(self.plan)
        return (
            rejects
            | "KeyByFile"
            >> beam.FlatMap(step.key_by_file, count_files, plan).with_output_types(tuple[int, elements.Reject])
            | "GroupByFile" >> beam.GroupByKey()  # (file index, [Reject])
            | "Store" >> beam.FlatMap(_store, settings=self.settings, plan=plan).with_output_types(str)
        )
