"""Stores the images rejected before their shard was written, until the commit collects all rejects.

The hash of a reject's key decides its file, and the number of rejects in the plan decides the number of files. So the
files are the same on every runner, and none holds more than one worker can sort. The commit joins them in the order of
their names.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam

from imagebeam import errors, storage
from imagebeam.transforms import dataset_settings, elements, step
from imagebeam.transforms.shard import shard_writer

_MIN_FILES, _MAX_FILES = 16, 4096
_REJECTS_PER_FILE = 20_000  # sorted in 15 MB; more only beyond 80 million rejects


def count_files(plan: elements.DatasetPlan) -> int:
    """Returns the number of files for the rejects of a plan; 0 if they are not stored."""
    if plan.action != "write" and plan.exit_code != errors.TooManyRejectsError.exit_code:
        return 0  # the output must stay as it is
    return min(_MAX_FILES, max(_MIN_FILES, -(-sum(plan.rejected.values()) // _REJECTS_PER_FILE)))


def _key_by_file(reject: elements.Reject, plan: elements.DatasetPlan) -> Iterator[tuple[int, elements.Reject]]:
    """Reject -> (file index, Reject)."""
    if num_files := count_files(plan):
        yield zlib.crc32(elements.encode_key(reject.key)) % num_files, reject


def _store(
    element: tuple[int, Iterable[elements.Reject]],
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
) -> Iterator[str]:
    """(file index, [Reject]) -> name of the file in the staging folder."""
    index, rejects = element
    width = len(str(count_files(plan) - 1))  # so that the order of names is that of the numbers
    name = f"early-{index:0{width}d}{shard_writer.REJECTS_SUFFIX}"
    staging = settings.paths.staging(plan.fingerprint)
    store = storage.storage_of(staging)
    store.make_directories(staging)
    store.write_whole(storage.join(staging, name), shard_writer.encode_rejects(sorted(rejects)), durable=False)
    yield name


@dataclasses.dataclass
class StoreDeadLetters(step.Step):
    """Writes rejects into files in the staging folder and yields the files' names."""

    settings: dataset_settings.DatasetSettings
    plan: beam.PCollection[elements.DatasetPlan]  # one element

    def expand(self, rejects: beam.PCollection[elements.Reject]) -> beam.PCollection[str]:
        plan = beam.pvalue.AsSingleton(self.plan)
        return (
            rejects
            | "KeyByFile" >> beam.FlatMap(_key_by_file, plan=plan).with_output_types(tuple[int, elements.Reject])
            | "GroupByFile" >> beam.GroupByKey()  # (file index, [Reject])
            | "Store" >> beam.FlatMap(_store, settings=self.settings, plan=plan).with_output_types(str)
        )
